"""Regrading: stored patches graded by a row whose tests became stronger, and resumption after a kill."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config.recipes import resolve
from engine.config.run import AnyRun, RegradeRun
from engine.datasets.store import save_dataset, with_content_id
from engine.events.delivery.spool import SPOOL_NAME, SpoolSink
from engine.events.types import RunStarted
from engine.grading.grader import Grader
from engine.orchestrator import execute
from engine.orchestrator.regrading.regrade import Regrading
from engine.types import TaskRow
from tests.builders.dataset_builders import NUMBERS, broken_task, patched, toolchain_or_skip, write_toy
from tests.builders.verifier_builders import events, roll_out
from tests.integration.toy_yard import make_run_dir, open_context

GOOD = patched(NUMBERS)
LAZY = patched(NUMBERS.replace("    if value > high:\n        return high\n", ""))
"""Passes the weak row, which does not test values above the range."""
LOST_TASK = "f" * 16
Event = dict[str, Any]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("regrade")
    toolchain_or_skip(folder)
    return folder


@pytest.fixture(scope="module")
def weak(home: Path) -> TaskRow:
    """Row of the run's rollouts; the dataset holds a stronger one since."""
    strong = broken_task(home, write_toy(home / "source"))
    required = tuple(name for name in strong.answer.fail_to_pass if "5-5" in name)
    row = with_content_id(replace(strong, answer=replace(strong.answer, fail_to_pass=required)))
    save_dataset(home, "toy", [row], {})
    collect(home, row)
    save_dataset(home, "toy", [strong], {})
    return row


def collect(home: Path, row: TaskRow) -> None:
    """Write a finished run: lazy, good and unchanged rollouts, one without a patch and one of a lost task."""
    config = resolve("quickstart-collect", {"dataset.name": "toy", "dataset.split": "train"})
    run_dir = make_run_dir(home, "7", config)
    with closing(SpoolSink(run_dir, epoch=1)) as sink:
        sink.emit(RunStarted, host="h", pid=1)
        for index, (patch, passed) in enumerate(((LAZY, True), (GOOD, True), (LAZY, True), ("", False))):
            roll_out(sink, row.task.id, index, passed=passed, patch=patch)
        roll_out(sink, row.task.id, 4, passed=False, patch="", verdict="patch_failed")
        roll_out(sink, LOST_TASK, 0)
        roll_out(sink, row.task.id, 5, termination="env_error", verdict=None, reward=None)


def regrading(**settings: Any) -> AnyRun:
    return resolve("regrade", {"regrade.runs": ["7"], "sandbox.memory_mb": 512, **settings})


def perform(home: Path, name: str, config: AnyRun, *, epoch: int = 1) -> Event:
    """Perform a run; return its terminal event."""
    with open_context(home, name, config, epoch=epoch) as run:
        execute(config, run)
    return events(home, name)[-1]


def verdicts(home: Path, name: str) -> Mapping[int, Event]:
    """Return the newest record of each rollout of the row by index."""
    regraded = events(home, name, "trajectory_regraded")
    return {
        event["ref"]["index"]: event["regrade"] for event in regraded if event["ref"]["task_id"] != LOST_TASK
    }


@pytest.fixture(scope="module")
def regraded(home: Path, weak: TaskRow) -> Event:
    ended = perform(home, "r", regrading())
    assert ended["state"] == "succeeded", ended
    return ended


def test_patches_flip_under_stronger_tests(home: Path, weak: TaskRow, regraded: Event) -> None:
    records = verdicts(home, "r")
    changes = {index: (record["old_verdict"], record["verdict"]) for index, record in records.items()}
    assert changes == {
        0: ("passed", "failed"), 1: ("passed", "passed"), 2: ("passed", "failed"), 3: ("failed", "failed"),
        4: ("patch_failed", None),
    }  # fmt: skip
    assert records[0]["failed_tests"] == ["tests/test_numbers.py::test_clamp[11-10]"]
    assert records[0]["dataset"] == "toy"
    assert records[0]["row"] != weak.task.id
    assert records[4]["obstacle"] == "no_patch"
    (lost,) = (e for e in events(home, "r", "trajectory_regraded") if e["ref"]["task_id"] == LOST_TASK)
    assert lost["regrade"]["obstacle"] == "no_row"
    assert "'toy' continues task ffff" in lost["regrade"]["detail"]
    summary = regraded["summary"]
    counts = ("trajectories", "patches", "regraded", "lost", "not_regraded", "passed_before", "passed_after")
    assert [summary[name] for name in counts] == [6, 3, 4, 0, 2, 3, 1]
    assert (summary["flip_passed_failed"], summary["flip_failed_passed"]) == (2, 0)


def test_attempt_after_a_kill_grades_only_the_rest(
    home: Path, regraded: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(home / "runs" / "r", home / "runs" / "killed")
    spool = home / "runs" / "killed" / SPOOL_NAME
    lines = spool.read_bytes().splitlines(keepends=True)
    kept = [
        number for number, line in enumerate(lines) if b'"verdict":"failed"' in line and b'"index":2' in line
    ]
    spool.write_bytes(b"".join(lines[: kept[0] + 1]))
    patches: list[str] = []
    grade = Grader.grade

    async def counted(grader: Grader, row: TaskRow, patch: str, **named: Any) -> Any:
        patches.append(patch)
        return await grade(grader, row, patch, **named)

    monkeypatch.setattr(Grader, "grade", counted)
    ended = perform(home, "killed", regrading(), epoch=2)
    counts = Counter(event["ref"]["index"] for event in events(home, "killed", "trajectory_regraded"))
    assert LAZY not in patches, "its verdict was recorded before the kill"
    assert counts[2] == 1
    assert verdicts(home, "killed") == verdicts(home, "r")
    names = regraded["summary"].keys() - {"seconds"}
    assert {name: ended["summary"][name] for name in names} == {
        name: regraded["summary"][name] for name in names
    }


def test_another_dataset_decides_and_its_other_trees_do_not_fit(
    home: Path, weak: TaskRow, regraded: Event
) -> None:
    save_dataset(home, "same", [weak], {})
    assert perform(home, "same", regrading(**{"regrade.dataset": "same"}))["summary"]["passed_after"] == 3
    moved = with_content_id(replace(weak, task=replace(weak.task, image="local:toy-other")))
    save_dataset(home, "moved", [moved], {})
    ended = perform(home, "moved", regrading(**{"regrade.dataset": "moved"}))
    assert ended["state"] == "failed"
    assert "starts from another image" in ended["reason"]
    assert ended["summary"]["obstacle_other_tree"] == 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"regrade.runs": []}, "regrade.runs: no run is named"),
        ({"regrade.runs": ["404"]}, "regrade.runs: there is no run '404'"),
        ({"regrade.dataset": "none"}, "regrade.dataset: there is no dataset 'none'"),
        ({"regrade.phases": ["eval:heldout"]}, "no graded trajectories in these phases"),
    ],
)
def test_regradings_without_work_fail_and_name_the_setting(
    home: Path, weak: TaskRow, settings: Event, message: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ended = perform(home, tmp_path_factory.mktemp("refused").name, regrading(**settings))
    assert ended["state"] == "failed"
    assert message in ended["reason"]


def test_regrading_without_any_verdict_fails_with_a_reason(home: Path, weak: TaskRow) -> None:
    config = regrading()
    assert isinstance(config, RegradeRun)
    with open_context(home, "nothing", config) as run:
        result = Regrading(config, run).result(0.0)
    assert result.state == "failed"
    assert result.reason.endswith("the runs have no trajectory with a verdict")
