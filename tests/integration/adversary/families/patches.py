"""Patches of tests and settings, which are forbidden, and spellings that hide them.

``tests/unit/grading/test_patch_apply.py`` applies more spellings.
"""

from __future__ import annotations

from engine.patches.diff import diff_texts, diff_trees
from engine.patches.trees import FileState
from tests.builders.dataset_builders import TEST_NUMBERS, new_file
from tests.integration.adversary.families.exits import EXIT_0
from tests.integration.adversary.frame import SIGNED, Submission

_TESTS = "tests/test_numbers.py"
_EASY = "def test_clamp(): pass\n"
_LIE = (
    "import pytest\n\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
    "    outcome = yield\n    outcome.get_result().outcome = 'passed'\n"
)
_HUNK = new_file("x", _LIE).partition("+++ b/x\n")[2]
_MOVE = "diff --git a/{0} b/{1}\nsimilarity index 100%\n{2} from {0}\n{2} to {1}\n"


def link(path: str, target: str) -> str:
    """Return a patch that adds a symbolic link."""
    return (
        f"diff --git a/{path} b/{path}\nnew file mode 120000\n--- /dev/null\n+++ b/{path}\n"
        f"@@ -0,0 +1 @@\n+{target}\n\\ No newline at end of file\n"
    )


_FILES = {
    "edited tests": diff_texts(_TESTS, TEST_NUMBERS, _EASY),
    "conftest that lies": new_file("conftest.py", _LIE),
    "conftest of the tests": new_file("tests/conftest.py", _LIE),
    "configuration": new_file("pytest.toml", "[pytest]\naddopts = ['--deselect', 'tests']\n"),
    "plugin by configuration": new_file("tox.ini", "[pytest]\naddopts = -p toy.evil\n")
    + new_file("toy/evil.py", _LIE),
    "shadowed pytest": new_file("pytest.py", EXIT_0) + new_file("_pytest/__init__.py", EXIT_0),
    "shadowed standard library": new_file("json.py", EXIT_0),
    "sitecustomize": new_file("sitecustomize.py", EXIT_0) + new_file("usercustomize.py", EXIT_0),
    "path file": new_file("evil.pth", "import os; os._exit(0)\n"),
    "installed runner": new_file("venv/lib/python3.11/site-packages/pytest.py", EXIT_0),
}
_SPELLINGS = {
    "tests as a link": link("tests", "/tmp"),
    "tests moved away": _MOVE.format(_TESTS, "toy/old_numbers.py", "rename"),
    "tests deleted and made anew": diff_trees({_TESTS: FileState(0o100644, TEST_NUMBERS.encode())}, {})
    + new_file(_TESTS, _EASY).replace("new file mode 100644\n", ""),
    "tests as a submodule": f"diff --git a/tests b/tests\nnew file mode 160000\nindex 0000000..{'1' * 40}\n"
    f"--- /dev/null\n+++ b/tests\n@@ -0,0 +1 @@\n+Subproject commit {'1' * 40}\n",
    "conftest with another prefix": f"--- i/conftest.py\n+++ w/conftest.py\n{_HUNK}",
    "conftest under another file's header": "diff --git a/toy/numbers.py b/toy/numbers.py\n"
    f"+++ b/conftest.py\n{_HUNK}",
    "conftest after a rejected hunk": diff_texts("toy/words.py", "other\n", "new\n")
    + f"--- /dev/null\n+++ b/conftest.py\n{_HUNK}",
    "conftest behind talk": "Here is my fix:\n\nIndex: toy/numbers.py\n"
    f"--- /dev/null\n+++ b/conftest.py\n{_HUNK}",
    "conftest as a binary patch": diff_trees(
        {}, {"conftest.py": FileState(0o100644, b"# coding: latin-1\n# \xff\n" + _LIE.encode())}
    ),
    "conftest below an absolute path": f"--- /dev/null\n+++ /testbed/conftest.py\n{_HUNK}",
    "settings of git": new_file(".git/config", "[core]\n\tfsmonitor = touch /tmp/ran\n"),
    "attributes of git": new_file(".gitattributes", "tests/** working-tree-encoding=UTF-16\n"),
}
FAMILY = tuple(
    Submission(name=name, patch=patch, rules=SIGNED)
    for name, patch in {
        "tests and settings at once": "".join(_FILES.values()),
        **_FILES,
        **_SPELLINGS,
    }.items()
)
