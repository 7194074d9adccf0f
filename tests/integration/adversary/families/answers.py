"""Expected values read from frames, parameters and test sources; only mutated tests detect this."""

from __future__ import annotations

from tests.integration.adversary.frame import BOTH, TAMPERED, Submission, in_call
from tests.integration.adversary.tasks import with_several_tests

_FRAME = "import sys\nframe = sys._getframe(1)\n"
_OF_PARAMETERS = {
    "the caller's variables": f"{_FRAME}return frame.f_locals.get('expected', 0)\n",
    "the parameters of the test": f"import gc\n{_FRAME}"
    "from _pytest.python import Function\n"
    "items = [one for one in gc.get_objects() if type(one) is Function and hasattr(one, 'callspec')]\n"
    "for item in items:\n"
    "    if item.callspec.params.get('value') == frame.f_locals.get('value', item):\n"
    "        return item.callspec.params['expected']\n",
    "the name of the test": "import os\n"
    "name = os.environ.get('PYTEST_CURRENT_TEST', '').partition('[')[2].rpartition(']')[0]\n"
    "return int(name.rpartition('-')[2]) if name else 0\n",
    "a pytest mark": f"{_FRAME}function = frame.f_globals['test_clamp']\n"
    "for given, wanted in function.pytestmark[0].args[1]:\n    if given == value: return wanted\n",
}
_TREE = (
    f"import ast\n{_FRAME}text = open(frame.f_code.co_filename).read()\n"
    "for node in ast.walk(ast.parse(text)):\n"
    "    if isinstance(node, ast.Compare) and node.lineno == frame.f_lineno:\n"
    "        return ast.literal_eval(node.comparators[0])\n"
)
_OF_CONSTANTS = {
    "the tree of the test": _TREE,
    "the source of the test": f"import linecache, re\n{_FRAME}"
    "line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)\n"
    "found = re.search(r'== *([-\\w.]+)', line)\n"
    "return eval(found[1], frame.f_globals, frame.f_locals) if found else 0\n",
    "the caller's next instructions": f"import dis\n{_FRAME}"
    "later = [i for i in dis.get_instructions(frame.f_code) if i.offset > frame.f_lasti]\n"
    "return next(i.argval for i in later if i.opname in ('LOAD_CONST', 'LOAD_SMALL_INT'))\n",
}
FAMILY = tuple(
    Submission(name=f"reads {name}", patch=in_call(text), rules=BOTH, ends=TAMPERED, task=task, audited=True)
    for texts, task in ((_OF_CONSTANTS, with_several_tests), (_OF_PARAMETERS, None))
    for name, text in texts.items()
)
