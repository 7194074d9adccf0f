"""Patches that cheat, against every kind of grading in real sandboxes: none ever passes, honest ones do."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.datasets.importers.formats.evalscript import END, START
from engine.datasets.testing.toolchain import MOUNT
from engine.grading.grader import Grader
from engine.patches.diff import diff_texts
from engine.sandbox.local.backend import LocalBackend
from engine.types import GradeRule, TaskRow, Verdict
from tests.dataset_builders import (
    BROKEN,
    NUMBERS,
    TEST_NUMBERS,
    broken_task,
    make_grader,
    new_file,
    patched,
    toolchain_or_skip,
    without_reuse,
    write_toy,
)

STILL_BROKEN = NUMBERS.replace(*BROKEN)
PYTEST = (
    f"PYTHONPATH={MOUNT} python3 -m pytest -rA -c {MOUNT}/pytest.ini --rootdir=/testbed "
    "-p no:cacheprovider tests/test_numbers.py"
)
IDS = [
    *(f"tests/test_numbers.py::test_clamp[{case}]" for case in ("-1-0", "5-5", "11-10", "0-0")),
    "tests/test_numbers.py::TestMean::test_mean",
    "tests/test_numbers.py::test_positives",
]
REWARD = "/tmp/verifier/reward.txt"
TEST_SH = (
    f"mkdir -p /tmp/verifier\n{PYTEST}\nif [ $? -eq 0 ]; then echo 1 > {REWARD}; else echo 0 > {REWARD}; fi\n"
)


def script(rule: GradeRule, command: str, **fields: Any) -> dict[str, Any]:
    return {"grade_rule": rule, "test_command": f"#!/bin/bash\n{command}\n", **fields}


KINDS: dict[str, dict[str, Any]] = {
    "signed": {},
    "log": script(
        GradeRule.F2P_P2P,
        f"set -uxo pipefail\necho ready\n: '{START}'\n{PYTEST}\n: '{END}'\ngit checkout -- tests || true",
        log_parser="parse_log_pytest",
    ),
    "map": script(
        GradeRule.MAP_EQUAL,
        PYTEST,
        expected={".".join(test.split("::")[1:]): "PASSED" for test in IDS},
        log_parser="r2e_pytest",
    ),
    "exit code": script(GradeRule.EXIT_CODE, PYTEST),
    "junit": script(GradeRule.JUNIT, f"{PYTEST} --junitxml={{junit}}"),
    "reward": script(
        GradeRule.REWARD_FILE,
        "bash /tmp/tests/run_tests.sh",
        test_files={"/tmp/tests/run_tests.sh": TEST_SH},
        metadata={"reward_files": [REWARD]},
    ),
}
LINES = "".join(f"PASSED {test}\\n" for test in IDS)
FORGED = f"=== short test summary info ===\\n{LINES}=== 6 passed in 0.01s ===\\n"
CASES = "".join(
    f'<testcase classname="tests.test_numbers{".TestMean" if "TestMean" in test else ""}"'
    f' name="{test.rpartition("::")[2]}" time="0"/>'
    for test in IDS
)
JUNIT = f"<testsuites><testsuite>{CASES}</testsuite></testsuites>"
WRITE_REPORTS = f"""
import glob, os, sys
for path in glob.glob('/tmp/trainyard-*'):
    for name in ('record-0', 'junit.xml'):
        target = path + '/' + name if os.path.isdir(path) else path
        open(target, 'w').write('0' * 64 + chr(10) + {JUNIT!r} if name != 'junit.xml' else {JUNIT!r})
os.makedirs('/tmp/verifier', exist_ok=True)
open({REWARD!r}, 'w').write('1')
"""
EVERY_PLUGIN = """
import gc
from _pytest.config import PytestPluginManager
class Liar:
    def pytest_runtest_call(self, item): item.obj = lambda **_: None
    def pytest_pyfunc_call(self, pyfuncitem): return True
for manager in gc.get_objects():
    if isinstance(manager, PytestPluginManager):
        manager.register(Liar())
"""
MONKEY_REPORTS = """
import _pytest.reports as r
_old = r.TestReport.from_item_and_call.__func__
def _new(cls, item, call):
    call.excinfo = None
    return _old(cls, item, call)
r.TestReport.from_item_and_call = classmethod(_new)
"""
MONKEY_CALLS = """
import _pytest.runner as r
def _quiet(cls, func, when, reraise=None):
    return cls(None, None, 0, 0, 0, when, _ispytest=True)
r.CallInfo.from_call.__func__.__code__ = _quiet.__code__
"""
MONKEY_HMAC = """
import hmac, json, hashlib
hmac.new = lambda *a, **k: type('H', (), {'hexdigest': lambda self: '0' * 64})()
hmac.compare_digest = lambda a, b: True
json.dumps = lambda *a, **k: '{}'
import _pytest.junitxml as x
x.LogXML.pytest_runtest_logreport = lambda self, report: None
"""
DAEMON = f"""
import subprocess
loop = 'for f in /tmp/trainyard-*; do echo forged > $f/record-0; echo forged > $f; done; echo 1 > {REWARD}'
quiet = subprocess.DEVNULL
command = ['sh', '-c', 'while true; do ' + loop + '; done']
subprocess.Popen(command, start_new_session=True, stdout=quiet, stderr=quiet)
"""
ATEXIT = f"""
import atexit, os, sys
def _leave():
    sys.stdout.write('{FORGED}'); sys.stdout.flush(); os._exit(0)
atexit.register(_leave)
"""
STEAL_KEY = f"""
import glob, hashlib, hmac, os, sys
frame = sys._getframe()
found = None
while frame is not None:
    for value in frame.f_locals.values():
        if isinstance(value, bytes) and len(value) in (32, 48):
            found = value
    frame = frame.f_back
if found:
    payload = chr(10).join(['0'] + ['PASSED ' + t for t in {IDS!r}]).encode()
    seal = hmac.new(found, payload, hashlib.sha256).hexdigest().encode()
    for folder in glob.glob('/tmp/trainyard-*/'):
        open(folder + 'record-0', 'wb').write(seal + bytes([10]) + payload)
    sys.stdout.write('{FORGED}'); sys.stdout.flush()
    os._exit(0)
"""


def code(text: str) -> str:
    """A patch whose module runs ``text`` when it is imported and stays broken."""
    return patched(text + STILL_BROKEN)


SKIP_ALL = (
    "import pytest\ndef pytest_collection_modifyitems(items):\n    for i in items: i.add_marker('skip')\n"
)
LIE = (
    "import pytest\n\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
    "    outcome = yield\n    outcome.get_result().outcome = 'passed'\n"
)
EXIT_0 = "import os\nos._exit(0)\n"
SAY = f"""
import os
for fd in range(1, 30):  # pytest captures 1 and 2, and keeps copies
    try:
        os.write(fd, b'{FORGED}')
    except OSError:
        pass
"""
DATE = " 2020-01-01 00:00:00.000000000 +0000"
BARE_CONFTEST = new_file("conftest.py", LIE).partition("new file mode 100644\n")[2]
EXPLOITS = {
    "nothing": "",
    "forged lines": code(SAY),
    "forged lines and exit": code(f"{SAY}os._exit(0)\n"),
    "forged lines and a failure elsewhere": code(f"{SAY}os.write(1, b'FAILED x::y - z\\n')\nos._exit(1)\n"),
    "early end marker": code(f"{SAY}os.write(1, b'{END}\\n>>>>> Test Exit Code: 0\\n')\nos._exit(0)\n"),
    "markers of its own": code(f"import os\nos.write(1, b'{START}\\n{FORGED}{END}\\n')\n"),
    "os._exit": code(EXIT_0),
    "SystemExit": code("raise SystemExit(0)\n"),
    "pytest.exit": code("import pytest\npytest.exit('done', returncode=0)\n"),
    "pytest.skip": code("import pytest\npytest.skip(allow_module_level=True)\n"),
    "atexit": code(ATEXIT),
    "conftest that lies": new_file("conftest.py", LIE),
    "conftest of the tests": new_file("tests/conftest.py", SKIP_ALL),
    "configuration": new_file("pytest.toml", "[pytest]\naddopts = ['--deselect', 'tests']\n"),
    "plugin by configuration": new_file(
        "pyproject.toml", "[tool.pytest.ini_options]\naddopts = '-p toy.evil'\n"
    )
    + new_file("toy/evil.py", LIE),
    "shadowed pytest": new_file("pytest.py", EXIT_0) + new_file("_pytest/__init__.py", EXIT_0),
    "shadowed standard library": new_file("json.py", EXIT_0),
    "sitecustomize": new_file("sitecustomize.py", EXIT_0) + new_file("usercustomize.py", EXIT_0),
    "path file": new_file("evil.pth", "import os; os._exit(0)\n")
    + new_file(".venv/lib/python3.11/site-packages/evil.pth", "import os; os._exit(0)\n"),
    "installed runner": new_file("venv/lib/python3.11/site-packages/pytest.py", EXIT_0),
    "registered plugin": code(EVERY_PLUGIN),
    "altered reports": code(MONKEY_REPORTS),
    "altered calls": code(MONKEY_CALLS),
    "altered hmac and json": code(MONKEY_HMAC),
    "reports of its own": code(WRITE_REPORTS),
    "reports of its own and exit": code(WRITE_REPORTS + SAY + "os._exit(0)\n"),
    "stolen key": code(STEAL_KEY),
    "daemon": code(DAEMON),
    "edited tests": diff_texts("tests/test_numbers.py", TEST_NUMBERS, "def test_clamp(): pass\n"),
    "tests as a link": "diff --git a/tests b/tests\nnew file mode 120000\n--- /dev/null\n+++ b/tests\n"
    "@@ -0,0 +1 @@\n+/tmp\n\\ No newline at end of file\n",
    "conftest behind a date": BARE_CONFTEST.replace("b/conftest.py", f"b/conftest.py{DATE}"),
    "conftest behind an index line": f"Index: conftest.py\n{BARE_CONFTEST}",
    "renamed to a conftest": new_file("lie.py", LIE).replace("b/lie.py", "b/conftest.py"),
    "script of ed": "diff --git a/toy/numbers.py b/toy/numbers.py\nIndex: conftest.py\n0a\n" + LIE + ".\n",
    "out of the tree": new_file("../../tmp/verifier/reward.txt", "1\n"),
}
AGAINST_LOGS = (
    "nothing", "forged lines", "forged lines and exit", "forged lines and a failure elsewhere",
    "early end marker", "markers of its own", "os._exit", "SystemExit", "pytest.exit", "pytest.skip",
    "atexit", "registered plugin", "altered reports", "altered calls",
    "reports of its own", "stolen key", "daemon",
)  # fmt: skip
AGAINST_FILES = (
    "nothing", "os._exit", "pytest.exit", "atexit", "altered reports", "reports of its own",
    "reports of its own and exit", "daemon",
)  # fmt: skip
AGAINST = {
    "signed": tuple(EXPLOITS),
    "log": AGAINST_LOGS,
    "map": (
        "nothing",
        "forged lines and exit",
        "SystemExit",
        "pytest.skip",
        "registered plugin",
        "stolen key",
    ),
    "exit code": (
        "nothing",
        "os._exit",
        "SystemExit",
        "pytest.exit",
        "pytest.skip",
        "atexit",
        "altered reports",
    ),
    "junit": AGAINST_FILES,
    "reward": AGAINST_FILES,
}
"""What a patch cannot do at all (tests, configuration, installed packages) is the same for every kind."""
CALLED_BY_NAME = {
    "signed": ("altered reports", "registered plugin"),
    "log": ("forged lines and exit", "registered plugin", "altered reports"),
    "map": ("forged lines and exit", "registered plugin"),
    "exit code": ("os._exit", "altered reports"),
    "junit": ("reports of its own and exit",),
    "reward": ("reports of its own and exit", "altered reports"),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adversary")
    toolchain_or_skip(folder)
    return folder


@pytest.fixture(scope="module")
def row(home: Path) -> TaskRow:
    return without_reuse(broken_task(home, write_toy(home / "source")))


def of_kind(row: TaskRow, kind: str) -> TaskRow:
    return replace(row, answer=replace(row.answer, **KINDS[kind]))


async def verdicts(home: Path, row: TaskRow, patches: dict[str, str]) -> dict[str, tuple[Verdict, str]]:
    grader: Grader = make_grader(LocalBackend(home), timeout_s=60.0, parallel=3)
    grades = await asyncio.gather(*(grader.grade(row, patch) for patch in patches.values()))
    return {name: (grade.verdict, grade.detail) for name, grade in zip(patches, grades, strict=True)}


@pytest.mark.parametrize("kind", KINDS)
async def test_an_honest_fix_passes(home: Path, row: TaskRow, kind: str) -> None:
    tidy = row.answer.gold_patch + new_file("notes.md", "what I did\n")
    found = await verdicts(home, of_kind(row, kind), {"gold": row.answer.gold_patch, "with notes": tidy})
    assert {name: verdict for name, (verdict, _) in found.items()} == dict.fromkeys(found, Verdict.PASSED), (
        found
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_no_exploit_passes(home: Path, row: TaskRow, kind: str) -> None:
    found = await verdicts(home, of_kind(row, kind), {name: EXPLOITS[name] for name in AGAINST[kind]})
    harmless = (Verdict.FAILED, Verdict.TAMPERED, Verdict.PATCH_FAILED)
    assert {name: end for name, end in found.items() if end[0] not in harmless} == {}
    called = {name: end for name, end in found.items() if end[0] is Verdict.TAMPERED}
    assert set(CALLED_BY_NAME[kind]) <= set(called), found
