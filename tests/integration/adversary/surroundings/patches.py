"""Patches written so that a file comes to be, or goes away, which their text does not seem to name."""

from __future__ import annotations

from engine.patches.diff import diff_texts, diff_trees
from engine.patches.trees import FileState
from tests.builders.dataset_builders import TEST_NUMBERS, new_file
from tests.integration.adversary.frame import SIGNED, STILL_BROKEN, Layer, Submission

_LIE = (
    "import pytest\n\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
    "    outcome = yield\n    outcome.get_result().outcome = 'passed'\n"
)
_HUNK = new_file("x", _LIE).partition("+++ b/x\n")[2]
_EASY = "def test_clamp(): pass\n"
_FUZZY = diff_texts(
    "toy/numbers.py",
    STILL_BROKEN.replace("def mean(values):\n", "def other(values):\n"),
    STILL_BROKEN.replace("def mean(values):\n", "def other(values):\n").replace(
        "    total = sum(values)\n", "    total = sum(values)  # sum\n"
    ),
)
_MOVE = "diff --git a/{0} b/{1}\nsimilarity index 100%\n{2} from {0}\n{2} to {1}\n"
_TESTS = "tests/test_numbers.py"


def _patch(name: str, patch: str) -> Submission:
    return Submission(name=name, patch=patch, layer=Layer.PATCH, rules=SIGNED)


def _conftest(name: str, header: str, hunk: str = _HUNK) -> Submission:
    return _patch(f"conftest {name}", header + hunk)


FAMILY = (
    _conftest("without git's header", "--- /dev/null\n+++ b/conftest.py\n"),
    _conftest("without prefixes", "--- conftest.py\n+++ conftest.py\n"),
    _conftest("with another prefix", "--- i/conftest.py\n+++ w/conftest.py\n"),
    _conftest("behind a tab and a date", "--- /dev/null\t1970-01-01\n+++ b/conftest.py\t2020-01-01\n"),
    _conftest("in octal", '--- /dev/null\n+++ "b/\\143\\157\\156\\146\\164\\145\\163\\164\\056\\160\\171"\n'),
    _conftest(
        "in quotes on one side",
        'diff --git a/conftest.py "b/conf\\164est.py"\nnew file mode 100644\n--- /dev/null\n'
        '+++ "b/conf\\164est.py"\n',
    ),
    _conftest("through dots", "--- /dev/null\n+++ b/toy/../conftest.py\n"),
    _conftest("behind two slashes", "--- /dev/null\n+++ b//conftest.py\n"),
    _conftest("of the tests behind dots", "--- /dev/null\n+++ b/./tests/conftest.py\n"),
    _conftest("with carriage returns", "--- /dev/null\r\n+++ b/conftest.py\r\n"),
    _conftest(
        "under another file's header", "diff --git a/toy/numbers.py b/toy/numbers.py\n+++ b/conftest.py\n"
    ),
    _conftest("after fuzz", f"{_FUZZY}--- /dev/null\n+++ b/conftest.py\n"),
    _conftest(
        "after a rejected hunk",
        diff_texts("toy/words.py", "nothing like it\n", "new\n") + "--- /dev/null\n+++ b/conftest.py\n",
    ),
    _conftest("behind talk", "Here is my fix:\n\nIndex: toy/numbers.py\n--- /dev/null\n+++ b/conftest.py\n"),
    _patch(
        "conftest as a binary patch",
        diff_trees({}, {"conftest.py": FileState(0o100644, b"# coding: latin-1\n# \xff\n" + _LIE.encode())}),
    ),
    _patch(
        "conftest moved from code",
        new_file("toy/lie.py", _LIE) + _MOVE.format("toy/lie.py", "conftest.py", "rename"),
    ),
    _patch("conftest copied from code", _MOVE.format("toy/numbers.py", "tests/conftest.py", "copy")),
    _patch(
        "conftest as a link",
        new_file("toy/lie.py", _LIE)
        + "diff --git a/conftest.py b/conftest.py\nnew file mode 120000\n--- /dev/null\n+++ b/conftest.py\n"
        "@@ -0,0 +1 @@\n+toy/lie.py\n\\ No newline at end of file\n",
    ),
    _patch("tests moved away", _MOVE.format(_TESTS, "toy/old_numbers.py", "rename")),
    _patch(
        "tests deleted and made anew",
        diff_trees({_TESTS: FileState(0o100644, TEST_NUMBERS.encode())}, {})
        + new_file(_TESTS, _EASY).replace("new file mode 100644\n", ""),
    ),
    _patch(
        "tests with context that differs",
        diff_texts(
            _TESTS,
            TEST_NUMBERS.replace("import pytest\n", "import pytest, os\n"),
            TEST_NUMBERS.replace("import pytest\n", "import pytest, os\n").replace("== expected", "!= 77"),
        ),
    ),
    _patch(
        "tests as a submodule",
        f"diff --git a/tests b/tests\nnew file mode 160000\nindex 0000000..{'1' * 40}\n"
        "--- /dev/null\n+++ b/tests\n"
        f"@@ -0,0 +1 @@\n+Subproject commit {'1' * 40}\n",
    ),
    _patch("settings of git", new_file(".git/config", "[core]\n\tfsmonitor = touch /tmp/ran\n")),
    _patch("attributes of git", new_file(".gitattributes", "tests/** working-tree-encoding=UTF-16\n")),
    _patch("a test below an absolute path", f"--- /dev/null\n+++ /testbed/conftest.py\n{_HUNK}"),
)
