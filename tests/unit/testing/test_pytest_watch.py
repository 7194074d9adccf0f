"""The witness, the recorder and the guard around a real pytest, with honest projects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.grading.running.reports import unsealed
from engine.sandbox.agent.interpreters import launcher
from engine.testing.testrun import Record
from engine.testing.toolchain import recorder_scripts

KEY, TOKEN = "k" * 48, "t" * 48
WITNESS = "sys.argv[1:] = ['{0}']; sys.path.insert(0, '{0}'); import trainyard_witness as it; it.main()"
PASSES = "from lib import double\n\ndef test_double():\n    assert double(2) == 4\n"
DOUBLE = "def double(x):\n    return 2 * x\n"


def run(
    tmp_path: Path,
    files: dict[str, str],
    command: str = "python -m pytest -q tests",
    begin: str = "",
    changed: tuple[str, ...] = ("lib.py",),
) -> Record | None:
    """Run a command in a project below the witness and return its record.

    Args:
        changed: files of the submission.
    """
    folder, project = tmp_path / "nonce", tmp_path / "project"
    folder.mkdir()
    for name, source in recorder_scripts().items():
        (folder / name).write_bytes(source)
    for name, text in {
        "lib.py": DOUBLE,
        "tests/test_lib.py": PASSES,
        "pytest.ini": "[pytest]\n",
        **files,
    }.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    submission = [str(project), *(str(project / name) for name in changed)]
    (folder / "submission").write_text("\0".join(submission))
    script = f"{begin or f'printf {TOKEN} > {folder}/begin'}\n{command}\n"
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{folder}:{project}",
        "PYTEST_ADDOPTS": "-p trainyard_recorder -p no:cacheprovider",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    subprocess.run(
        launcher(WITNESS.format(folder)),
        cwd=project,
        env=environment,
        input=f"{KEY}\n{TOKEN}\n{script}".encode(),
        capture_output=True,
        timeout=300,
    )
    return unsealed((folder / "record").read_bytes(), KEY.encode())


CONFTEST = """
import sys
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().sections.append(("note", "seen"))

def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.name)

@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
"""
FROZEN = """
import datetime, time, sys
class Fake(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2020, 1, 1)
def freeze():
    saved = []
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is datetime.datetime and module is not datetime:
                saved.append((module, name, value))
                setattr(module, name, Fake)
    return saved
def thaw(saved):
    for module, name, value in saved:
        setattr(module, name, value)
"""
TRACED = """
import sys
from lib import double
class Tracer:
    def __call__(self, frame, event, arg):
        return self
def test_double():
    before = sys.gettrace()
    sys.settrace(Tracer())
    try:
        assert double(2) == 4
    finally:
        sys.settrace(before)
"""
UNITTEST = """
import unittest
from lib import double
unittest.TestCase.assertItemsEqual = unittest.TestCase.assertCountEqual
unittest.TestCase.maxDiff = None
class TestDouble(unittest.TestCase):
    def assertDoubled(self, value): self.assertEqual(double(value), 2 * value)
    def test_double(self): self.assertDoubled(2); self.assertItemsEqual([1], [1])
    @unittest.expectedFailure
    def test_expected(self): self.assertEqual(double(2), 5)
"""
PLUGIN = """
import _pytest.runner, _pytest.unittest, pytest
_old = _pytest.runner.call_runtest_hook if hasattr(_pytest.runner, "call_runtest_hook") else None
def check_interactive_exception(call, report):
    return False
_pytest.runner.check_interactive_exception = check_interactive_exception
def pytest_runtest_setup(item): pass
"""
HONEST = {
    "hooks in conftest, names added to builtins, a tracer, helpers of unittest": {
        "conftest.py": CONFTEST, "tests/conftest.py": CONFTEST, "tests/test_lib.py": TRACED,
        "tests/test_methods.py": UNITTEST, "lib.py": f"import builtins\nbuiltins._ = str\n{DOUBLE}",
    },
    "a frozen clock": {
        "tests/frozen.py": FROZEN,
        "tests/conftest.py": "import pytest\nfrom frozen import freeze, thaw\n@pytest.fixture(autouse=True)\n"
        "def frozen():\n    saved = freeze()\n    yield\n    thaw(saved)\n",
    },
    "names removed from sys": {
        "tests/test_lib.py": "import sys\nfrom lib import double\ndef test_double(monkeypatch):\n"
        "    for name in ('_getframe', 'gettrace', 'getprofile'):\n"
        "        monkeypatch.delattr(sys, name)\n    assert double(2) == 4\n"
    },
    "pytest in a test": {
        "tests/test_lib.py": "import subprocess, sys\nfrom lib import double\ndef test_double(tmp_path):\n"
        "    (tmp_path / 'test_x.py').write_text('def test_x(): assert 0')\n"
        "    assert subprocess.run([sys.executable, '-m', 'pytest', str(tmp_path)]).returncode == 1\n"
        "    assert double(2) == 4\n"
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_honest_projects_have_clean_records(tmp_path: Path, name: str) -> None:
    record = run(tmp_path, HONEST[name])
    assert record is not None
    assert (record.altered, record.exit_status) == ((), 0)
    assert "PASSED" in record.outcomes.values()


@pytest.mark.parametrize("folder", ["lib/python3/site-packages", "../nonce"])
def test_an_installed_plugin_that_changes_the_runner_is_no_finding(tmp_path: Path, folder: str) -> None:
    """Plugins lie in the interpreter's packages, or beside the recorder as in a toolchain."""
    plugin = f"{folder}/pytest_changes.py"
    command = f"PYTHONPATH=$PYTHONPATH:{Path(plugin).parent} python -m pytest -q -p pytest_changes tests"
    record = run(tmp_path, {plugin: PLUGIN}, command)
    assert record is not None
    assert (record.altered, list(record.outcomes.values())) == ((), ["PASSED"])


PLUGIN_OF_PROJECT = """
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    obj = pyfuncitem.obj
    pyfuncitem.obj = lambda *args, **kwargs: obj(*args, **kwargs)
    yield

def make():
    def pytest_runtest_setup(item):
        item.started = True
    return pytest_runtest_setup
"""
USES_PLUGIN = "from aio import pytest_plugin\npytest_plugins = ['aio.pytest_plugin']\n" + (
    "pytest_runtest_setup = pytest_plugin.make()\n"
)
OWN_PLUGIN = {"aio/pytest_plugin.py": PLUGIN_OF_PROJECT, "conftest.py": USES_PLUGIN, "aio/__init__.py": ""}


def test_a_plugin_of_the_project_counts_only_if_the_submission_changed_it(tmp_path: Path) -> None:
    command = "cd tests && python -m pytest -q ."
    for name, changed in (("other", "lib.py"), ("plugin", "aio/pytest_plugin.py")):
        (tmp_path / name).mkdir()
        record = run(tmp_path / name, OWN_PLUGIN, command, changed=(changed,))
        assert record is not None
        assert list(record.outcomes.values()) == ["PASSED"]
        assert bool(record.altered) is (name == "plugin")


def test_tests_on_several_workers_are_recorded_once(tmp_path: Path) -> None:
    record = run(tmp_path, {"tests/test_more.py": PASSES}, "python -m pytest -q -p xdist.plugin -n 2 tests")
    assert record is not None
    assert (record.altered, list(record.outcomes.values())) == ((), ["PASSED", "PASSED"])


def test_sessions_before_the_tests_begin_do_not_count(tmp_path: Path) -> None:
    assert run(tmp_path, {}, begin="printf guessed > ../nonce/begin") is None


def test_an_unfinished_session_among_several_is_reported(tmp_path: Path) -> None:
    files = {"tests/test_dies.py": "import os\ndef test_dies(): os._exit(0)\n"}
    record = run(
        tmp_path, files, "python -m pytest -q tests/test_dies.py; python -m pytest -q tests/test_lib.py"
    )
    assert record is not None
    assert (record.exit_status, list(record.outcomes.values())) == (-1, ["PASSED"])
