"""Detection of test helpers that the submission replaces; replacements by honest projects are no finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.testing.testrun import Record
from tests.unit.testing.test_pytest_watch import run

CHECKS = """
import filecmp
from tests.deeper import same, LIMIT

def check(found, wanted, *, close=1):
    assert abs(found - wanted) < close
    assert same(found, wanted)

class Checks:
    def has(self, found, wanted):
        check(found, wanted)
"""
DEEPER = "LIMIT = 3\n\ndef same(found, wanted):\n    assert found == wanted\n    return True\n"
TESTS = """
import filecmp
from lib import double
from tests import checks
from tests.checks import LIMIT, Checks, check

FOUR = 4

def test_function():
    check(double(2), 4)

def test_module():
    checks.check(double(2), FOUR)

def test_constant():
    assert 2 * double(2) - 5 <= LIMIT

def test_library(tmp_path):
    for number in (2, 4):
        (tmp_path / str(number)).write_text(str(double(number) // 2))
    (tmp_path / "two").write_text("2")
    assert filecmp.cmp(tmp_path / "2", tmp_path / "two", shallow=False)

class TestDouble(Checks):
    def test_method(self):
        self.has(double(2), 4)
"""
FILES = {
    "tests/__init__.py": "",
    "tests/checks.py": CHECKS,
    "tests/deeper.py": DEEPER,
    "tests/test_lib.py": TESTS,
    "conftest.py": "import sys\nsys.path.insert(0, '.')\n",
}
ALTERED = {
    "a function's code": "import tests.checks as c\n"
    "c.check.__code__ = (lambda found, wanted, *, close=1: None).__code__\n",
    "a mock": "import tests.checks as c, unittest.mock\nc.check = unittest.mock.MagicMock()\n",
    "a helper's helper": "import tests.deeper as d\nd.same = lambda *_: True\n",
    "a default": "import tests.checks as c\nc.check.__kwdefaults__['close'] = 1000\n",
    "a method": "import tests.checks as c\nc.Checks.has = lambda *_: None\n",
    "a library's function": "import filecmp\nfilecmp.cmp = lambda *_, **__: True\n",
}
IN_CALL = {
    "the test's own name": "    import sys\n    sys._getframe(1).f_globals['check'] = lambda *_: None\n",
    "a helper": "    import tests.checks\n    tests.checks.check = lambda *_: None\n",
}


def altered(record: Record | None) -> tuple[str, ...]:
    assert record is not None
    return (*record.altered, *record.changed)


@pytest.mark.parametrize("how", ALTERED)
def test_helpers_that_the_submission_alters_are_found(tmp_path: Path, how: str) -> None:
    record = run(tmp_path, {**FILES, "lib.py": f"{ALTERED[how]}\n\ndef double(x):\n    return 5\n"})
    assert altered(record), record


@pytest.mark.parametrize("how", IN_CALL)
def test_helpers_altered_while_tests_run_are_found(tmp_path: Path, how: str) -> None:
    record = run(tmp_path, {**FILES, "lib.py": f"def double(x):\n{IN_CALL[how]}    return 5\n"})
    assert altered(record), record


@pytest.mark.parametrize(
    ("code", "sign"),
    [
        ("import tests.deeper as d\nd.LIMIT = 1000\n\ndef double(x):\n", "tests.deeper.LIMIT was changed"),
        (
            "def double(x):\n    import sys\n    sys._getframe(1).f_globals['FOUR'] = 5\n",
            "tests.test_lib.FOUR was changed",
        ),
    ],
)
def test_constants_changed_by_the_submission_are_reported_separately(
    tmp_path: Path, code: str, sign: str
) -> None:
    record = run(tmp_path, {**FILES, "lib.py": f"{code}    return 5\n"})
    assert record is not None
    assert (record.altered, record.changed) == ((), (sign,))


def test_constants_changed_by_fixtures_are_no_alteration_of_the_runner(tmp_path: Path) -> None:
    files = {
        "tests/conftest.py": "import pytest\n@pytest.fixture(autouse=True, scope='module')\n"
        "def connected(request):\n    request.module.HOST = 'localhost'\n",
        "tests/test_lib.py": TESTS + "\nASKED = 0\nCACHE = None\nHOST = ''\n\n"
        "def setup_module(module):\n    module.ASKED = 1\n    global CACHE\n    CACHE = {2: 4}\n\n"
        "def test_cache():\n    assert (ASKED, CACHE, HOST) == (1, {2: 4}, 'localhost')\n",
    }
    record = run(tmp_path, {**FILES, **files})
    assert record is not None
    assert set(record.outcomes.values()) == {"PASSED"}
    assert record.altered == ()
    assert record.changed == ("tests.test_lib.ASKED was changed", "tests.test_lib.HOST was changed")


HONEST = {
    "helpers that a conftest replaces": {
        "conftest.py": FILES["conftest.py"] + "import tests.checks, tests.deeper\n"
        "def check(found, wanted):\n    assert found == wanted\n"
        "tests.checks.check = check\ntests.deeper.same = lambda *_: True\n"
    },
    "helpers that fixtures replace": {
        "tests/conftest.py": "import pytest, unittest.mock\nimport tests.deeper, filecmp\n"
        "@pytest.fixture(autouse=True, scope='session')\ndef mocked():\n"
        "    with unittest.mock.patch('tests.deeper.same'), unittest.mock.patch('filecmp.cmp'):\n"
        "        yield\n"
    },
    "decorated helpers whose assertions are rewritten": {
        "conftest.py": f"import pytest\n{FILES['conftest.py']}"
        "pytest.register_assert_rewrite('tests.checks', 'tests.deeper')\n",
        "tests/deeper.py": "import contextlib, functools\nLIMIT = 3\n"
        "def logged(function):\n    @functools.wraps(function)\n    def wrapper(*args):\n"
        "        return function(*args)\n    return wrapper\n"
        "class Dispatcher:\n    def __init__(self, function):\n        self.function = function\n"
        "    def __call__(self, *args):\n        return self.function(*args)\n"
        "@Dispatcher\n@functools.lru_cache()\n@logged\n"
        "def same(found, wanted):\n    return found == wanted\n",
    },
    "helpers in C": {
        "tests/deeper.py": "LIMIT = 3\ndef same(found, wanted):\n    return found == wanted\n"
        "try:\n    from operator import eq as same\nexcept ImportError:\n    pass\n"
    },
    "functions of the interpreter's own library": {
        "tests/deeper.py": "import abc, codecs, importlib.util, io, operator, os, stat\n"
        "from os.path import join\nLIMIT = 3\n"
        "def same(found, wanted):\n    os.path.join(os.path.basename('a'), os.path.expanduser('b'))\n"
        "    join('a', abc.abstractmethod(same).__name__, stat.filemode(0))\n    codecs.open\n    io.open\n"
        "    importlib.util.spec_from_file_location('a', importlib.util.find_spec('abc').origin)\n"
        "    operator.add(1, 2)\n    return operator.eq(found, wanted)\n"
    },
    "modules that are imported anew": {
        "tests/test_lib.py": TESTS + "\ndef test_again():\n    import importlib, sys\n"
        "    importlib.reload(checks)\n    del sys.modules['tests.deeper']\n    import tests.deeper\n"
    },
    "doctests": {
        "pytest.ini": "[pytest]\naddopts = --doctest-modules\n",
        "tests/deeper.py": f"{DEEPER}\nsame.__doc__ = '>>> same(1, 1)\\nTrue'\n",
        "conftest.py": FILES["conftest.py"] + "import pytest\n@pytest.fixture(autouse=True)\n"
        "def named(doctest_namespace):\n    doctest_namespace['same'] = 3\n    doctest_namespace.clear()\n",
    },
}


@pytest.mark.parametrize("how", HONEST)
def test_changes_of_helpers_by_honest_projects_are_no_finding(tmp_path: Path, how: str) -> None:
    files = {**FILES, **HONEST[how]}
    record = run(tmp_path, files, "python -m pytest -q tests conftest.py")
    assert altered(record) == ()
    assert record is not None
    assert set(record.outcomes.values()) == {"PASSED"}, record


def test_a_library_patched_by_the_project_gives_one_sign_for_any_submission(tmp_path: Path) -> None:
    files = {
        **FILES,
        "lib.py": "import patches\ndef double(x):\n    return 2 * x\n",
        "patches.py": "import filecmp\n_old = filecmp.cmp\n"
        "def cmp(*args, **kwargs):\n    return _old(*args, **kwargs)\nfilecmp.cmp = cmp\n",
    }
    signs = []
    for changed in (("lib.py",), ("lib.py", "patches.py")):
        (tmp_path / str(len(changed))).mkdir()
        signs.append(altered(run(tmp_path / str(len(changed)), files, changed=changed)))
    assert signs[0] == signs[1] == ("filecmp.cmp was replaced",)


def test_helpers_of_unittest_classes_are_checked(tmp_path: Path) -> None:
    test = (
        "import unittest\nfrom lib import double\nfrom tests.checks import Checks\n\n"
        "class DoubleTest(Checks, unittest.TestCase):\n"
        "    def test_double(self):\n        self.has(double(2), 4)\n"
    )
    for number, (code, num_signs) in enumerate(
        [
            ("def double(x):\n    return 2 * x\n", 0),
            (f"{ALTERED['a method']}\ndef double(x):\n    return 5\n", 1),
        ]
    ):
        (tmp_path / str(number)).mkdir()
        command = f"python {tmp_path / str(number)}/nonce/trainyard_unittest.py tests.test_lib"
        record = run(tmp_path / str(number), {**FILES, "tests/test_lib.py": test, "lib.py": code}, command)
        assert len(altered(record)) == num_signs, record
