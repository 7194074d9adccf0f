"""Grading in real sandboxes: verdicts, limits, test tools and infrastructure failures."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.errors import DatasetError
from engine.grading.grader import Grader
from engine.grading.running.placement import remove_bytecode
from engine.patches.diff import diff_texts
from engine.sandbox.agent import wire
from engine.sandbox.base import SandboxSpec
from engine.sandbox.local.backend import LocalBackend
from engine.testing import testrun
from engine.testing.toolchain import DRIVER, MOUNT, update_toolchains
from engine.types import TaskAnswer, TaskRow, TestOutcome, Verdict
from tests.builders.dataset_builders import (
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


async def test_sandboxes_do_not_compile_the_runner(home: Path, row: TaskRow) -> None:
    """Sandboxes mount the toolchain read-only, so it must contain valid bytecode."""
    command = f"PYTHONPATH={MOUNT} python3 -v -S -B -c 'import trainyard_guard, trainyard_recorder, pytest'"
    async with LocalBackend(home).open(SandboxSpec(image=row.task.image)) as box:
        output = (await box.exec(command, timeout_s=60, output_cap=1 << 20)).stderr.decode()
    loaded = {name for name in re.findall(r"code object from '?([^'\n]+)'?", output) if MOUNT in name}
    assert f"{MOUNT}/__pycache__/trainyard_guard" in "".join(loaded)
    assert [name for name in loaded if name.endswith(".py")] == []


P, F, M = TestOutcome.PASSED, TestOutcome.FAILED, TestOutcome.MISSING
BROKEN_NUMBERS = NUMBERS.replace(*BROKEN)


@pytest.mark.parametrize(
    ("patch", "outcomes", "detail"),
    [
        (diff_texts("toy/numbers.py", BROKEN_NUMBERS, BROKEN_NUMBERS.replace("total / count", "total")),
         [F, F, F, P], "test_clamp[5-5] failed"),
        (patched("def clamp(:\n"), [M, M, M, M], ""),
    ],
    ids=["a passing test broken", "a syntax error"],
)  # fmt: skip
async def test_failed_tests_are_named(
    home: Path, row: TaskRow, patch: str, outcomes: list[TestOutcome], detail: str
) -> None:
    grade = await make_grader(LocalBackend(home)).grade(row, patch)
    assert (grade.verdict, grade.reward) == (Verdict.FAILED, 0.0)
    assert [test.outcome for test in grade.tests] == outcomes
    assert detail in grade.detail


async def test_unimportable_conftest_fails_the_grading_with_a_reason(home: Path, row: TaskRow) -> None:
    files = {"tests/conftest.py": "import toy.numbers\n"}
    task = replace(row, answer=replace(row.answer, test_files=files, deterministic=False))
    grade = await make_grader(LocalBackend(home)).grade(task, patched("def clamp(:\n"))
    assert grade.verdict is Verdict.FAILED
    assert "the tests did not run (exit code 4)" in grade.detail


@pytest.mark.parametrize(
    ("obstacle", "solved", "verdict"),
    [
        ("toy/checks/check_clamp.py/x.txt", True, Verdict.PASSED),
        ("toy/checks", False, Verdict.FAILED),
        ("toy/numbers.py/x", True, Verdict.PATCH_FAILED),
    ],
)
async def test_path_that_blocks_a_test_file_is_no_infrastructure_failure(
    home: Path, row: TaskRow, obstacle: str, solved: bool, verdict: Verdict
) -> None:
    files = {"toy/checks/check_clamp.py": "def test(): pass\n"}
    hidden = replace(row, answer=replace(row.answer, test_files=files, deterministic=False))
    patch = new_file(obstacle, "x\n") + (row.answer.gold_patch if solved else "")
    grade = await make_grader(LocalBackend(home)).grade(hidden, patch)
    assert grade.verdict is verdict
    assert obstacle in grade.detail or verdict is Verdict.PATCH_FAILED


async def test_unplaceable_test_file_is_an_infrastructure_failure(home: Path, row: TaskRow) -> None:
    files = {"toy/numbers.py/check.py": ""}
    hidden = replace(row, answer=replace(row.answer, test_files=files, deterministic=False))
    grade = await make_grader(LocalBackend(home)).grade(hidden, new_file("notes.md", "x\n"))
    assert (grade.verdict, grade.reward) == (Verdict.INFRA_ERROR, None)
    changed = await make_grader(LocalBackend(home)).grade(hidden, row.answer.gold_patch)
    assert (changed.verdict, changed.reward) == (Verdict.PATCH_FAILED, 0.0)


FILL = """
import os
try:
    with open('/tmp/fill', 'wb', buffering=0) as file:
        while True:
            file.write(bytes(1 << 14))
except OSError:
    pass
"""


async def test_full_disk_is_reported_as_the_reason(home: Path, row: TaskRow) -> None:
    """A recorder without disk space for its report is no sign of tampering."""
    grader = Grader(
        backend=LocalBackend(home),
        config=GradingConfig(),
        sandbox=SandboxConfig(memory_mb=256, disk_mb=16),
        run_id="test",
    )
    grade = await grader.grade(row, patched(FILL + NUMBERS))
    assert (grade.verdict, grade.reward) == (Verdict.FAILED, 0.0)
    assert grade.detail.startswith("the sandbox's disk was full when the tests ended (sandbox.disk_mb")


async def test_a_small_patch_of_very_large_files_does_not_apply(
    home: Path, row: TaskRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unpacked files exceed the largest message to a sandbox."""
    monkeypatch.setattr(wire, "MAX_FRAME", 2 << 20)
    packed = zlib.compress(bytes(1 << 20), 9)
    lines = [packed[offset : offset + 52] for offset in range(0, len(packed), 52)]
    text = "".join(
        chr(ord("A") + len(line) - 1 if len(line) <= 26 else ord("a") + len(line) - 27)
        + base64.b85encode(line + b"\0" * (-len(line) % 4)).decode()
        + "\n"
        for line in lines
    )
    head = (
        "diff --git a/{0} b/{0}\nnew file mode 100644\nindex {1}..{2}\nGIT binary patch\nliteral {3}\n{4}\n"
    )
    blob = hashlib.sha1(b"blob %d\0" % (1 << 20) + bytes(1 << 20)).hexdigest()
    files = [head.format(name, "0" * 40, blob, 1 << 20, text) for name in ("a", "b", "c")]
    grade = await make_grader(LocalBackend(home)).grade(row, "".join(files) + row.answer.gold_patch)
    assert (grade.verdict, grade.reward) == (Verdict.PATCH_FAILED, 0.0)
    assert "larger than" in grade.detail


async def test_an_endless_loop_is_a_timeout(home: Path, row: TaskRow) -> None:
    patch = patched(f"import signal\nwhile True: signal.pause()\n{NUMBERS}")
    grade = await make_grader(LocalBackend(home), timeout_s=1.0).grade(row, patch)
    assert (grade.verdict, grade.reward) == (Verdict.TEST_TIMEOUT, 0.0)


async def test_a_fix_that_also_edits_tests_keeps_only_the_fix(home: Path, row: TaskRow) -> None:
    edited = diff_texts("tests/test_numbers.py", TEST_NUMBERS, "def test_clamp(): pass\n")
    patch = row.answer.gold_patch + edited + new_file("tests/conftest.py", "import sys\nsys.exit()\n")
    grade = await make_grader(LocalBackend(home)).grade(row, patch)
    assert (grade.verdict, grade.reward) == (Verdict.PASSED, 1.0)
    assert grade.detail == "left out of the patch: tests/conftest.py, tests/test_numbers.py"
    assert [test.outcome for test in grade.tests] == [P] * 4
    assert "passed" in grade.log


async def test_hidden_tests_replace_those_of_the_image(home: Path, row: TaskRow) -> None:
    hidden = {"tests/test_numbers.py": TEST_NUMBERS.replace("(11, 10)", "(11, 99)")}
    answer = TaskAnswer(
        gold_patch="",
        test_files=hidden,
        fail_to_pass=("tests/test_numbers.py::test_clamp[11-99]",),
        test_command=row.answer.test_command,
    )
    task_row = TaskRow(task=row.task, answer=answer, split="train")
    grade = await make_grader(LocalBackend(home)).grade(task_row, row.answer.gold_patch)
    assert "test_clamp[11-99] failed" in grade.detail


async def test_outdated_test_tools_are_distinguished_from_a_damaged_report(
    home: Path, row: TaskRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_payload: bytes) -> testrun.Record:
        raise ValueError("not a line of a record")

    monkeypatch.setattr(testrun, "read_record", unreadable)
    grade = await make_grader(LocalBackend(home)).grade(row, row.answer.gold_patch)
    assert (grade.verdict, grade.reward) == (Verdict.TAMPERED, 0.0)
    monkeypatch.setattr(testrun, "runner_scripts", lambda: {"trainyard_driver.py": b"of tomorrow"})
    grade = await make_grader(LocalBackend(home)).grade(row, row.answer.gold_patch)
    assert (grade.verdict, grade.reward) == (Verdict.INFRA_ERROR, None)
    assert "test tools of another version" in grade.detail
    assert "rebuild its dataset" in grade.detail


@pytest.fixture
def own_row(tmp_path: Path) -> TaskRow:
    """Return the toy task in a separate data folder, whose test tools may be changed."""
    toolchain_or_skip(tmp_path)
    return broken_task(tmp_path, write_toy(tmp_path / "source"))


async def test_renewal_updates_the_test_tools_of_older_images(tmp_path: Path, own_row: TaskRow) -> None:
    home, row = tmp_path, own_row
    (driver,) = (home / "toolchain").glob("*/trainyard_driver.py")
    current = driver.read_bytes()
    driver.write_bytes(b"raise SystemExit('of another version')")
    backend = LocalBackend(home)
    spec = SandboxSpec(image=row.task.image, workdir=row.task.workdir, run_id="toy")
    async with backend.open(spec) as before:
        update_toolchains(home)
        assert b"of another version" in await before.read_file(DRIVER)
    async with backend.open(spec) as after:
        assert await after.read_file(DRIVER) == current
    images = {path: path.stat().st_mtime_ns for path in (home / "images").glob("*/image.json")}
    update_toolchains(home)
    assert images == {path: path.stat().st_mtime_ns for path in images}


async def test_bytecode_of_replaced_test_files_is_removed(home: Path, row: TaskRow) -> None:
    spec = SandboxSpec(image=row.task.image, workdir=row.task.workdir, run_id="toy")
    stale = [
        "t/__pycache__/test_a b.cpython-311-pytest-9.1.0.pyc",
        "t/__pycache__/test_a b.pypy.pyc",
        "t/test_a b.pyc",
    ]
    others = ["t/__pycache__/test_a.cpython-311.pyc", "t/test_a b.py", "__pycache__/test_a b.cpython-311.pyc"]
    async with LocalBackend(home).open(spec) as box:
        for path in (*stale, *others):
            await box.write_file(path, b"")
        await remove_bytecode(box, ["t/test_a b.py", "t/data.json", "absent/test_b.py"])
        result = await box.exec("find . -name '*test_a*' | sort", timeout_s=60)
    assert result.stdout.decode().split("\n")[:-1] == sorted(f"./{path}" for path in others)


async def test_a_task_without_required_tests_is_refused(home: Path, row: TaskRow) -> None:
    empty = TaskRow(task=row.task, answer=TaskAnswer(gold_patch=""), split="train")
    with pytest.raises(DatasetError, match="no required tests"):
        await make_grader(LocalBackend(home)).grade(empty, "")


async def test_too_large_report_fails_the_patch(
    home: Path, row: TaskRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testrun, "REPORT_BYTES", 100_000)
    loud = patched(NUMBERS.replace("    total = sum(values)\n", "    raise ValueError('!' * 300_000)\n"))
    grade = await make_grader(LocalBackend(home)).grade(without_reuse(row), loud)
    assert (grade.verdict, grade.reward) == (Verdict.FAILED, 0.0)
    assert "larger than 100000 bytes" in grade.detail
