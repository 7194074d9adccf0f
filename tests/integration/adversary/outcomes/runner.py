"""The test runner altered from inside: its classes, functions, exceptions, modules and tracing."""

from __future__ import annotations

from tests.integration.adversary.frame import TAMPERED, Layer, Submission, code, in_call

_ALTERED = {
    "a property on reports": "import _pytest.reports as r\n"
    "r.TestReport.outcome = property(lambda s: 'passed', lambda s, v: None)\n",
    "reports that are never failed": "import _pytest.reports as r\n"
    "r.BaseReport.failed = property(lambda s: False)\nr.BaseReport.passed = property(lambda s: True)\n",
    "reports that were expected to fail": "import _pytest.reports as r\nr.TestReport.wasxfail = ''\n",
    "reports with their own attribute access": "import _pytest.reports as r\n"
    "def _get(s, n):\n"
    "    return 'passed' if n == 'outcome' else object.__getattribute__(s, n)\n"
    "r.TestReport.__getattribute__ = _get\n",
    "another class of reports": "import _pytest.reports as r, _pytest.runner as q\n"
    "class Good(r.TestReport):\n    failed = False\n    passed = True\nq.TestReport = Good\n",
    "a property on calls": "import _pytest.runner as r\n"
    "r.CallInfo.excinfo = property(lambda s: None, lambda s, v: None)\n",
    "another class of calls": "import _pytest.runner as r\n"
    "class Quiet(r.CallInfo):\n    excinfo = None\nr.CallInfo = Quiet\n",
    "calls that ignore attributes": "import _pytest.runner as r\n"
    "def _set(s, n, v):\n    object.__setattr__(s, n, None if n == 'excinfo' else v)\n"
    "r.CallInfo.__setattr__ = _set\n",
    "a replaced hook of the runner": "import _pytest.runner as r\n"
    "r.pytest_runtest_call.__code__ = (lambda item: None).__code__\n",
    "a replaced call of tests": "import _pytest.python as p\n"
    "p.pytest_pyfunc_call.__code__ = (lambda pyfuncitem: True).__code__\n",
    "items that run nothing": "import _pytest.python as p\np.Function.runtest = lambda s: None\n",
    "a builtin where a function was": "import _pytest.python as p\np.Function.runtest = id\n",
    "one function of pytest for another": "import _pytest.python as p\n"
    "p.Function.runtest = p.Function.setup\n",
    "a removed method": "import _pytest.python as p\n"
    "p.Function.runtest = lambda s: 0\ndel p.Function.setup\n",
    "hooks that are never called": "import pluggy._hooks as h\n_old = h.HookCaller.__call__\n"
    "def _call(s, **k):\n    return None if s.name == 'pytest_runtest_call' else _old(s, **k)\n"
    "h.HookCaller.__call__ = _call\n",
    "a library's file name": "import _pytest.python as p\n"
    "exec(compile('def runtest(self): pass', p.__file__, 'exec'))\np.Function.runtest = runtest\n",
    "a test's file name": "import os, _pytest.python as p\n"
    "exec(compile('def runtest(self): pass', os.path.abspath('tests/test_numbers.py'), 'exec'))\n"
    "p.Function.runtest = runtest\n",
    "a library's file of its own": "import os, sys, _pytest.python as p\n"
    "os.makedirs('/tmp/site-packages', exist_ok=True)\n"
    "open('/tmp/site-packages/kind.py', 'w').write('def runtest(self): pass\\n')\n"
    "sys.path.append('/tmp/site-packages')\nimport kind\np.Function.runtest = kind.runtest\n",
    "a library's wrapper": "import functools, _pytest.python as p\n"
    "p.Function.runtest = functools.wraps(p.Function.runtest)(lambda s: None)\n",
    "builtins.AssertionError": "import builtins\nclass E(Exception): pass\nbuiltins.AssertionError = E\n",
    "builtins.isinstance": "import builtins\n_old = builtins.isinstance\n"
    "builtins.isinstance = lambda a, b: True if 'Skipped' in repr(b) else _old(a, b)\n",
    "a builtin hidden in a module": "import _pytest.runner as r\nr.isinstance = lambda *_: True\n",
    "other classes of outcomes": "import _pytest.outcomes as o\n"
    "class Failed(o.Skipped): pass\no.Failed = Failed\n",
    "pytest.xfail": "import pytest\npytest.xfail = lambda *a, **k: None\n",
    "pytest.raises": "import pytest, contextlib\n"
    "pytest.raises = lambda *a, **k: contextlib.suppress(Exception)\n",
    "pytest.approx": "import pytest\nclass A:\n    def __init__(s, *a, **k): pass\n"
    "    __eq__ = lambda s, o: True\npytest.approx = A\n",
    "approx that equals everything": "import _pytest.python_api as a\n"
    "a.ApproxScalar.__eq__ = lambda s, o: True\n",
    "unittest.TestCase": "import unittest\nunittest.TestCase.assertEqual = lambda *a, **k: None\n",
    "the run of unittest": "import unittest.case as c\nc.TestCase.run = lambda s, r=None: r.addSuccess(s)\n",
    "a module in the place of another": "import sys, types, _pytest.runner as r\n"
    "n = types.ModuleType('_pytest.runner')\nn.__dict__.update(vars(r))\nsys.modules['_pytest.runner'] = n\n",
}
_FIND_GUARD = "import gc\n_guard = next(one for one in gc.get_objects() if type(one).__name__ == 'Guard')\n"
_IN_TESTS = {
    "a profile function": "import sys\nsys.setprofile(lambda f, e, a: None)\n",
    "a trace function": "import sys\ndef _t(f, e, a): return _t\nsys.settrace(_t)\n",
    "a tracer object": "import sys\nclass T:\n    def __call__(s, f, e, a): return s\nsys.settrace(T())\n",
    "a test's own code": "import sys\nf = sys._getframe(1)\n"
    "import gc\nfor g in gc.get_referrers(f.f_code):\n"
    "    if type(g).__name__ == 'function': g.__code__ = (lambda value, expected: None).__code__\n",
    "the runner during a call": "import _pytest.runner as r\n"
    "r.check_interactive_exception = lambda *a: False\n"
    "import _pytest.reports as q\nq.TestReport.wasxfail = ''\n",
}
_GUARDS = {
    "a guard that looks at nothing": "import trainyard_guard as g\n"
    "g.Guard.check = g.Guard.check_all = lambda *_: None\n",
    "a guard with other code": "import trainyard_guard as g\n"
    "g.Guard.check.__code__ = g.Guard.check_all.__code__ = (lambda self, config=None: None).__code__\n",
    "a guard with a method of its own": f"{_FIND_GUARD}_guard.check = _guard.check_all = lambda *_: None\n",
    "a guard that watches nothing": f"{_FIND_GUARD}_guard._spaces.clear()\n_guard._functions.clear()\n"
    "_guard._labels.clear()\n_guard._codes.clear()\n",
    "a guard of pytest itself": f"{_FIND_GUARD}_guard._is_subject = True\n",
    "a guard that trusts everything": "import trainyard_trust as t\n"
    "t.Trust.patch = t.Trust.value = lambda *_: True\n",
    "findings that nobody keeps": f"{_FIND_GUARD}\nclass Nothing(set):\n    def add(self, one): pass\n"
    "_guard.found = Nothing()\n",
    "a recorder that tells of no finding": "import trainyard_recorder as r\n"
    "r.Recorder._tell = lambda self: None\n",
}
"""Code that blinds the guard; then it alters the runner."""
_NAMES = ("reports that were expected to fail", "a property on calls", "one function of pytest for another")
"""Those that are tried under rules by which a script's exit code, report or reward decides, too."""


def _altered(name: str, patch: str) -> Submission:
    rules = ("log", "exit code", "junit", "reward", "parser") if name in _NAMES else ("log",)
    return Submission(name=name, patch=patch, layer=Layer.WATCH, rules=("signed", *rules), ends=TAMPERED)


FAMILY = (
    *(_altered(name, code(text + _ALTERED["items that run nothing"])) for name, text in _GUARDS.items()),
    *(_altered(name, code(text)) for name, text in _ALTERED.items()),
    *(_altered(name, in_call(text)) for name, text in _IN_TESTS.items()),
)
