"""Code that replaces helpers and constants used by the tests."""

from __future__ import annotations

from tests.integration.adversary.frame import BOTH, TAMPERED, Submission, code, in_call
from tests.integration.adversary.tasks import FILE, FIXED, content, with_tests

_CHECKS = """from tests.deeper import same


def check(found, wanted):
    same(found, wanted)


class Checks:
    def has(self, found, wanted):
        check(found, wanted)
"""
_HEAD = """import filecmp
from pathlib import Path

from tests.checks import Checks, check

DATA = Path(__file__).parent


"""
_TESTS = content(
    test_above="Checks().has(clamp(12, 0, 10), 10)",
    test_far_above='Path("out.txt").write_text(str(clamp(400, 0, 60)))\n'
    '    assert filecmp.cmp("out.txt", DATA / "wanted.txt", shallow=False)',
    test_inside="check(clamp(5, 0, 10), 5)",
)
_task = with_tests(
    {
        FILE: _HEAD + _TESTS,
        "tests/__init__.py": "",
        "tests/checks.py": _CHECKS,
        "tests/deeper.py": "def same(found, wanted):\n    assert found == wanted\n",
        "tests/wanted.txt": "60",
    }
)
_by_constant = with_tests(
    {
        FILE: "STRICT = True\n"
        + content(**{name: f"{assertion} or not STRICT" for name, assertion in FIXED.items()})
    }
)
_LIBRARY = "import filecmp\nfilecmp.cmp = lambda *_, **__: True\n"
_IMPORTED = {
    "helpers of helpers": f"{_LIBRARY}import tests.deeper as d\nd.same = lambda *_: None\n",
    "helpers that check nothing": f"{_LIBRARY}import tests.checks as c\nc.check = lambda *_: None\n",
    "methods that check nothing": f"{_LIBRARY}import tests.checks as c\nc.Checks.has = lambda *_: None\n",
    "a library's function": _LIBRARY,
}
FAMILY = (
    *(
        Submission(name=name, patch=code(text), rules=BOTH, ends=TAMPERED, task=_task)
        for name, text in _IMPORTED.items()
    ),
    Submission(
        name="a constant of the tests",
        patch=in_call("import sys\nsys._getframe(1).f_globals['STRICT'] = False\n"),
        rules=BOTH,
        ends=TAMPERED,
        task=_by_constant,
    ),
)
