"""Files that a patch may not bring: tests, configuration, plugins, modules that hide the runner's."""

from __future__ import annotations

from engine.patches.diff import diff_texts
from tests.builders.dataset_builders import TEST_NUMBERS, new_file
from tests.integration.adversary.frame import SIGNED, Layer, Submission
from tests.integration.adversary.outcomes.exits import EXIT_0

_SKIP_ALL = (
    "import pytest\ndef pytest_collection_modifyitems(items):\n    for i in items: i.add_marker('skip')\n"
)
_LIE = (
    "import pytest\n\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
    "    outcome = yield\n    outcome.get_result().outcome = 'passed'\n"
)
_DATE = " 2020-01-01 00:00:00.000000000 +0000"
_BARE_CONFTEST = new_file("conftest.py", _LIE).partition("new file mode 100644\n")[2]


def _brings(name: str, patch: str) -> Submission:
    return Submission(name=name, patch=patch, layer=Layer.PATCH, rules=SIGNED)


FAMILY = (
    _brings("conftest that lies", new_file("conftest.py", _LIE)),
    _brings("conftest of the tests", new_file("tests/conftest.py", _SKIP_ALL)),
    _brings("configuration", new_file("pytest.toml", "[pytest]\naddopts = ['--deselect', 'tests']\n")),
    _brings(
        "plugin by configuration",
        new_file("pyproject.toml", "[tool.pytest.ini_options]\naddopts = '-p toy.evil'\n")
        + new_file("toy/evil.py", _LIE),
    ),
    _brings("shadowed pytest", new_file("pytest.py", EXIT_0) + new_file("_pytest/__init__.py", EXIT_0)),
    _brings("shadowed standard library", new_file("json.py", EXIT_0)),
    _brings("sitecustomize", new_file("sitecustomize.py", EXIT_0) + new_file("usercustomize.py", EXIT_0)),
    _brings(
        "path file",
        new_file("evil.pth", "import os; os._exit(0)\n")
        + new_file(".venv/lib/python3.11/site-packages/evil.pth", "import os; os._exit(0)\n"),
    ),
    _brings("installed runner", new_file("venv/lib/python3.11/site-packages/pytest.py", EXIT_0)),
    _brings("edited tests", diff_texts("tests/test_numbers.py", TEST_NUMBERS, "def test_clamp(): pass\n")),
    _brings(
        "tests as a link",
        "diff --git a/tests b/tests\nnew file mode 120000\n--- /dev/null\n+++ b/tests\n"
        "@@ -0,0 +1 @@\n+/tmp\n\\ No newline at end of file\n",
    ),
    _brings("conftest behind a date", _BARE_CONFTEST.replace("b/conftest.py", f"b/conftest.py{_DATE}")),
    _brings("conftest behind an index line", f"Index: conftest.py\n{_BARE_CONFTEST}"),
    _brings("renamed to a conftest", new_file("lie.py", _LIE).replace("b/lie.py", "b/conftest.py")),
    _brings(
        "script of ed", f"diff --git a/toy/numbers.py b/toy/numbers.py\nIndex: conftest.py\n0a\n{_LIE}.\n"
    ),
)
