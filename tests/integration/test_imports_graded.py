"""Rows of published formats on images of this machine: imported, then graded untouched and with the gold patch."""
# ruff: noqa: E501  (literal rows)

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine.config.importing import ImportConfig
from engine.datasets.importers.run import import_dataset
from engine.datasets.patches import make_patch
from engine.datasets.store import load_dataset
from engine.datasets.toolchain import MOUNT
from engine.orchestrator.importing import obstacle
from engine.sandbox.images import build_image
from engine.sandbox.local import LocalBackend
from engine.types import TaskRow, Verdict
from tests.dataset_builders import (
    BROKEN,
    NUMBERS,
    TEST_NUMBERS,
    make_grader,
    new_file,
    toolchain_or_skip,
    write_toy,
)
from tests.unit.datasets.importers import rows

BROKEN_NUMBERS = NUMBERS.replace(*BROKEN)
GOLD = make_patch("toy/numbers.py", BROKEN_NUMBERS, NUMBERS)
NEW_TEST = "from toy.numbers import clamp\n\n\ndef test_upper():\n    assert clamp(11, 0, 10) == 10\n"
CHANGED_TESTS = TEST_NUMBERS.replace("(0, 0)", "(0, 0), (99, 10)")
TEST_PATCH = make_patch("tests/test_numbers.py", TEST_NUMBERS, CHANGED_TESTS) + new_file(
    "tests/test_upper.py", NEW_TEST
)
F2P = ["tests/test_numbers.py::test_clamp[99-10]", "tests/test_upper.py::test_upper"]
P2P = ["tests/test_numbers.py::test_positives"]
PYTEST = "python3 -m pytest --no-header -rA -p no:cacheprovider -c /dev/null --rootdir=/testbed"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with two images: ``local:broken``, the task's, and ``local:intact``; both are repositories."""
    folder = tmp_path_factory.mktemp("home")
    binds = {MOUNT: str(toolchain_or_skip(folder))}
    environment = {"PYTHONPATH": f"/testbed:{MOUNT}", "PYTHONDONTWRITEBYTECODE": "1"}
    for name, code in (("broken", BROKEN_NUMBERS), ("intact", NUMBERS)):
        tree = write_toy(folder / name)
        (tree / "toy/numbers.py").write_text(code)
        (tree / "r2e_tests").mkdir()
        (tree / "r2e_tests/test_1.py").write_text(NEW_TEST)
        (tree / "run_tests.sh").write_text(f"{PYTEST} r2e_tests\n")
        for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "base"]):
            subprocess.run(
                ["git", "-c", "user.name=a", "-c", "user.email=a@b", *command], cwd=tree, check=True
            )
        build_image(folder, name, tree, env=environment, binds=binds)
    return folder


def commit_of(home: Path, name: str) -> str:
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=home / name, check=True, capture_output=True, text=True).stdout.strip()


def imported(home: Path, form: str, source: Path) -> TaskRow:
    config = ImportConfig(format=form, source=str(source), output=form, mode="replace")
    result = import_dataset(config, home=home, gradable=obstacle)
    assert (result.imported, result.ungradable) == (1, 0)
    return load_dataset(home, form).rows[0]


def one_row(home: Path, form: str, row: dict[str, Any]) -> TaskRow:
    source = home / f"{form}.jsonl"
    source.write_text(json.dumps(row) + "\n")
    return imported(home, form, source)


async def verdicts(home: Path, row: TaskRow, *patches: str) -> list[Verdict]:
    grader = make_grader(LocalBackend(home), reuse=False)
    grades = [await grader.grade(row, patch) for patch in patches]
    if grades[-1].verdict is not Verdict.PASSED:
        print(grades[-1].detail, grades[-1].log[-3000:])
    return [grade.verdict for grade in grades]


async def test_swe_rebench(home: Path) -> None:
    row = rows.swe_rebench(
        base_commit=commit_of(home, "broken"), patch=GOLD, test_patch=TEST_PATCH, FAIL_TO_PASS=F2P, PASS_TO_PASS=P2P,
        docker_image="local:broken", install_config={"test_cmd": PYTEST, "log_parser": "parse_log_pytest"},
    )  # fmt: skip
    task = one_row(home, "swe-rebench", row)
    edited = GOLD + make_patch("tests/test_numbers.py", TEST_NUMBERS, "")
    assert await verdicts(home, task, "", edited, GOLD) == [Verdict.FAILED, Verdict.PASSED, Verdict.PASSED]


async def test_r2e_gym(home: Path) -> None:
    commit = rows.parsed_commit()
    commit["file_diffs"] = commit["file_diffs"][:1]
    code = commit["file_diffs"][0]
    code["header"]["file"]["path"] = "toy/numbers.py"
    code |= {"old_file_content": BROKEN_NUMBERS, "new_file_content": NUMBERS}
    results = {"test_file_names": ["test_1.py"], "test_file_codes": [NEW_TEST]}
    row = rows.r2e_gym(
        docker_image="local:broken", parsed_commit_content=json.dumps(commit),
        expected_output_json=json.dumps({"test_upper": "PASSED"}), execution_result_content=json.dumps(results),
    )  # fmt: skip
    task = one_row(home, "r2e-gym", row)
    assert await verdicts(home, task, "", task.answer.gold_patch) == [Verdict.FAILED, Verdict.PASSED]


async def test_swe_smith(home: Path) -> None:
    bug = make_patch("toy/numbers.py", NUMBERS, BROKEN_NUMBERS)
    failing = ["tests/test_numbers.py::test_clamp[11-10]", "tests/test_numbers.py::test_clamp[5-5]"]
    row = rows.swe_smith(
        patch=bug, image_name="local:intact", FAIL_TO_PASS=failing, PASS_TO_PASS=P2P,
        test_cmd=f"{PYTEST.replace('-rA', '-v')} tests/test_numbers.py", log_parser="swesmith_pytest",
    )  # fmt: skip
    task = one_row(home, "swe-smith", row)
    assert task.answer.gold_patch == GOLD
    assert await verdicts(home, task, "", task.answer.gold_patch) == [Verdict.FAILED, Verdict.PASSED]
