"""Command of the execution-based verifier, from files of rollouts to Best@K."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.datasets.store import save_dataset, with_content_id
from engine.errors import DatasetError
from engine.events.stored_trajectories import StoredStep, StoredTrajectory, write_trajectories
from engine.types import Verdict
from engine.verifiers.execution_based.__main__ import main
from engine.verifiers.execution_based.reports import TestReport
from engine.verifiers.execution_based.rollout_files import read_rollouts, read_tests
from engine.verifiers.execution_based.store import FolderReports
from engine.verifiers.selection.__main__ import main as selection
from tests.builders.dataset_builders import (
    NUMBERS,
    broken_task,
    new_file,
    patched,
    toolchain_or_skip,
    write_toy,
)

GOOD = patched(NUMBERS)
BREAKING = patched(NUMBERS.replace("return total / count", "return total"))
TEST = "from toy.numbers import clamp\n\n\ndef test_above():\n    assert clamp(11, 0, 10) == 10\n"
TOXIC = "from toy.numbers import mean\n\n\ndef test_sum():\n    assert mean([1, 2]) == 3\n"
"""Test that passes only where ``mean`` is broken."""
PASSING = "def test_nothing():\n    pass\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scoring")
    toolchain_or_skip(folder)
    row = broken_task(folder, write_toy(folder / "source"))
    silent = replace(row.answer, test_command="bash run_tests.sh")
    without_tests = with_content_id(replace(row, task=replace(row.task, instance_id="silent"), answer=silent))
    save_dataset(folder, "toy", [row, without_tests], {"sources": []})
    return folder


def write_lines(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(line if isinstance(line, str) else f"{json.dumps(line)}\n" for line in lines))
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rollout(name: str, patch: str, *, task: str = "toy__numbers-8", **columns: Any) -> dict[str, Any]:
    return {"instance_id": task, "trajectory_id": name, "patch": patch, **columns}


def command(home: Path, folder: Path, *arguments: str) -> list[str]:
    options = ["--home", str(home), "--dataset", "toy", "--output", str(folder / "out")]
    rollouts = ["--rollouts", str(folder / "rollouts.jsonl"), "--set", "sandbox.memory_mb=512"]
    return [*options, *rollouts, *arguments]


def test_rollouts_are_scored_into_a_table_for_selection(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        rollout("good", GOOD, resolved=True, steps=7, p_yes=0.2),
        rollout("breaking", BREAKING, resolved=False, steps=3, p_yes=0.9),
        rollout("empty", "", verdict="failed", steps=[{}, {}], p_yes=0.5),
        rollout("good", BREAKING, resolved=False),
        rollout("elsewhere", GOOD, task="unknown"),
        "{no json\n",
        rollout("unread", 7),  # type: ignore[arg-type]
    ]
    tests = [{"instance_id": "toy__numbers-8", "trajectory_id": 1, "content": text} for text in (TEST, TOXIC)]
    tests.append({"instance_id": "toy__numbers-8", "id": 3, "patch": new_file("test_issue.py", PASSING)})
    tests.append({"instance_id": "toy__numbers-8", "id": 4, "content": TEST})
    tests.append({"instance_id": "unknown", "id": 5, "content": TEST})
    write_lines(tmp_path / "rollouts.jsonl", lines)
    arguments = command(home, tmp_path, "--tests", str(write_lines(tmp_path / "tests.jsonl", tests)))
    assert main(arguments) == 0
    counts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (counts["tasks"], counts["rollouts"], counts["without_score"], counts["rejected"]) == (1, 3, 0, 5)
    assert (counts["tests"], counts["toxic"]) == ({"kept": 2, "passes": 1}, 1)
    assert "line 6" in counts["first_rejects"][0]
    assert counts["first_rejects"][-1] == (
        "tests.jsonl, test of trajectory 5: task unknown is not in dataset 'toy'"
    )

    scored = {line["trajectory_id"]: line for line in read_lines(tmp_path / "out/rollouts.jsonl")}
    passes = {name: (line["regression_passes"], line["reproduction_passes"]) for name, line in scored.items()}
    total = scored["good"]["regression_tests"]
    assert passes == {"good": (total, 1), "breaking": (total - 1, 2), "empty": (total, 0)}
    assert scored["empty"]["patch_hash"] == ""
    assert scored["empty"]["steps"] == 2
    assert scored["empty"]["regression_status"] == "no_change"
    tests_by_author = {line["author"]: line for line in read_lines(tmp_path / "out/tests.jsonl")}
    assert [tests_by_author[name]["rejection"] for name in ("1", "3")] == [None, "passes"]
    assert [line["toxic"] for line in read_lines(tmp_path / "out/tests.jsonl")] == [False, True, False]

    assert selection([str(tmp_path / "out/rollouts.jsonl"), "--rule", "eb", "--rule", "ef", "--json"]) == 0
    eb, ef = json.loads(capsys.readouterr().out)
    assert (eb["rule"], eb["points"][-1]["rate"]) == ("eb", 1.0)
    assert (ef["rule"], ef["points"][-1]["rate"]) == ("ef", 0.0)

    reports = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/reports").iterdir()}
    assert main(arguments) == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out/reports").iterdir()} == reports


def test_a_task_whose_tests_do_not_run_has_no_regression_scores(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(tmp_path / "rollouts.jsonl", [rollout("a", GOOD, task="silent")])
    assert main(command(home, tmp_path)) == 0
    (line,) = read_lines(tmp_path / "out/rollouts.jsonl")
    assert "the tests of its repository do not run" in line["error"]
    assert not {"regression_passes", "reproduction_passes"} & line.keys()
    assert selection([str(tmp_path / "out/rollouts.jsonl"), "--rule", "eb"]) == 2
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["without_score"] == 1


def test_error_in_one_task_leaves_the_scores_of_others_intact(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save = FolderReports.save

    async def full(store: FolderReports, key: str, report: TestReport) -> None:
        if not report.outcomes:
            raise OSError("no space left on device")
        await save(store, key, report)

    monkeypatch.setattr(FolderReports, "save", full)
    lines = [rollout("a", GOOD, task="silent"), rollout("b", GOOD, resolved=True)]
    write_lines(tmp_path / "rollouts.jsonl", lines)
    assert main(command(home, tmp_path)) == 0
    lost, scored = read_lines(tmp_path / "out/rollouts.jsonl")
    assert lost["error"] == "OSError: no space left on device"
    assert "regression_passes" not in lost
    assert scored["regression_passes"] == scored["regression_tests"] > 0
    assert scored.get("reproduction_passes") is None, "none were wanted"
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["without_score"] == 1


@pytest.mark.parametrize(
    ("lines", "arguments", "reason"),
    [
        ([], (), "holds no usable rows"),
        ([rollout("a", GOOD, task="unknown")], (), "is not in dataset 'toy'"),
        ([rollout("a", GOOD)], ("--set", "timeout_s=0"), "timeout_s"),
        ([rollout("a", GOOD)], ("--set", "grading.timeout_s=5"), "grading"),
        ([rollout("a", GOOD)], ("--tests", "nothing.jsonl"), "nothing.jsonl"),
    ],
)
def test_wrong_input_is_refused_with_its_reason(
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    lines: list[Any],
    arguments: tuple[str, ...],
    reason: str,
) -> None:
    write_lines(tmp_path / "rollouts.jsonl", lines)
    assert main(command(home, tmp_path, *arguments)) == 2
    assert reason in capsys.readouterr().err


def test_rows_without_a_name_or_a_patch_are_rejected(tmp_path: Path) -> None:
    good = rollout("a", GOOD)
    bad = [
        {**good, "trajectory_id": None},
        {**good, "instance_id": True},
        {**good, "patch": None},
        {**good, "patch": "\ud800"},
    ]
    accepted, rejected = read_rollouts(write_lines(tmp_path / "rows.jsonl", [good, *bad]))
    assert [entry.candidate.patch for entry in accepted] == [GOOD]
    assert [reason.partition(":")[0] for reason in rejected] == [
        "line 2, field 'trajectory_id'",
        "line 3, field 'instance_id'",
        "line 4, field 'patch'",
        "line 5, field 'patch'",
    ]
    with pytest.raises(DatasetError, match="holds no usable rows; the first of 4 problems: line 1"):
        read_rollouts(write_lines(tmp_path / "rows.jsonl", bad))
    (written,), _ = read_tests(write_lines(tmp_path / "tests.jsonl", [{**good, "content": ""}]))
    assert written.test.content == ""


def test_stored_trajectories_are_read_as_rollouts(tmp_path: Path) -> None:
    stored = StoredTrajectory(
        id=17,
        run=3,
        task_id="a" * 16,
        instance_id="toy__numbers-8",
        problem_statement="clamp is broken",
        verdict=Verdict.PASSED,
        patch=GOOD,
        steps=[StoredStep(response="a"), StoredStep(response="b")],
    )
    write_trajectories(tmp_path / "trajectories.jsonl", [stored])
    (loaded,), rejected = read_rollouts(tmp_path / "trajectories.jsonl")
    assert not rejected
    assert (loaded.task, loaded.candidate.trajectory_id, loaded.candidate.patch) == ("a" * 16, "17", GOOD)
    assert loaded.columns == {"resolved": True, "steps": 2}
