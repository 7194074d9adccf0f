"""What repeated gradings say about a row, the record of it on disk, and which rows a run uses."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.recipes import resolve
from engine.config.rollout import DatasetConfig
from engine.datasets import store
from engine.datasets.health import judge, read_solve_rates, row_content, row_standings, select
from engine.errors import ConfigError, DatasetError
from engine.events.health import (
    FILE,
    SOLVE_RATES_FILE,
    DecisionRecord,
    RowStatus,
    Side,
    SideOutcome,
    ValidationRecord,
    append,
    content_hash,
    read,
    standings,
)
from engine.types import Grade, Task, TaskAnswer, TaskRow, TestKind, TestOutcome, TestResult, Verdict

PASSED, FAILED, INFRA = Verdict.PASSED, Verdict.FAILED, Verdict.INFRA_ERROR


def grade(verdict: Verdict, *, failing: str = "", detail: str = "", tests: str = "ab") -> Grade:
    results = tuple(
        TestResult(
            test_id=test,
            kind=TestKind.FAIL_TO_PASS,
            outcome=TestOutcome.FAILED if test in failing else TestOutcome.PASSED,
        )
        for test in tests
        if verdict is not INFRA
    )
    return Grade(verdict=verdict, reward=None, tests=results, detail=detail, seconds=1.5)


def make_row(name: str = "one", **answer: object) -> TaskRow:
    task = Task(
        id="", instance_id=name, repo="r", base_commit="c", problem_statement="p", image="local:i",
        difficulty={"num_tests": 3},
    )  # fmt: skip
    fields: dict[str, object] = {"gold_patch": "g", "fail_to_pass": ("t::a",), "test_command": "x", **answer}
    return store.with_content_id(
        TaskRow(task=task, answer=TaskAnswer(**fields), split="train")  # type: ignore[arg-type]
    )


def record(row: TaskRow, status: RowStatus, *, run: str = "1", **fields: object) -> ValidationRecord:
    side = Side(outcome=SideOutcome.FAILED, verdicts=[FAILED], seconds=[0.5])
    values: dict[str, object] = {
        "id": f"{run}/{row.task.id}", "task_id": row.task.id, "content": row_content(row), "run_id": run,
        "time": 1.0, "status": status, "noop": side, "gold": side, "repeats": 1, "reason": f"is {status}",
    }  # fmt: skip
    return ValidationRecord.model_validate(values | fields)


def decision(row: TaskRow, *, quarantined: bool, reason: str = "because") -> DecisionRecord:
    return DecisionRecord(
        id=f"{quarantined}{reason}", task_id=row.task.id, content=row_content(row), time=2.0,
        quarantined=quarantined, reason=reason, by="ada",
    )  # fmt: skip


# --- judging --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noop", "gold", "status"),
    [
        ([FAILED, FAILED], [PASSED, PASSED], RowStatus.VALID),
        ([PASSED, PASSED], [PASSED, PASSED], RowStatus.NOOP_PASSES),
        ([PASSED, PASSED], [FAILED, FAILED], RowStatus.GOLD_FAILS),
        ([PASSED, PASSED], [INFRA], RowStatus.NOOP_PASSES),
        ([FAILED, FAILED], [FAILED, FAILED], RowStatus.GOLD_FAILS),
        ([FAILED] * 2, [Verdict.PATCH_FAILED], RowStatus.GOLD_FAILS),
        ([FAILED, FAILED], [PASSED, FAILED], RowStatus.FLAKY),
        ([FAILED, PASSED], [PASSED, PASSED], RowStatus.FLAKY),
        ([INFRA], [], RowStatus.INFRA),
        ([FAILED, FAILED], [INFRA], RowStatus.INFRA),
        # What infrastructure lost says nothing: neither for nor against the row.
        ([FAILED, INFRA], [PASSED, INFRA], RowStatus.VALID),
        ([INFRA], [FAILED, FAILED], RowStatus.GOLD_FAILS),
    ],
)
def test_statuses(noop: list[Verdict], gold: list[Verdict], status: RowStatus) -> None:
    failing = {PASSED: "", FAILED: "ab", Verdict.TAMPERED: "ab"}

    def graded(verdicts: list[Verdict]) -> list[Grade]:
        return [grade(v, failing=failing.get(v, ""), tests="ab" if v in failing else "") for v in verdicts]

    found = judge(graded(noop), graded(gold))
    assert found.status is status
    assert bool(found.reason) == (status not in (RowStatus.VALID, RowStatus.INFRA))


def test_a_test_that_wavers_is_named_even_where_the_verdict_stays() -> None:
    noop = [grade(FAILED, failing="a"), grade(FAILED, failing="ab")]
    found = judge(noop, [grade(PASSED), grade(PASSED)])
    assert (found.status, found.flaky_tests) == (RowStatus.FLAKY, ("b",))
    assert "flaky tests: b" in found.reason
    often = judge([grade(FAILED, failing="a")], [grade(PASSED), grade(FAILED, failing="b"), grade(PASSED)])
    assert "with the gold patch it passed 2 of 3 times" in often.reason
    assert (often.noop.outcome, often.gold.outcome) == (SideOutcome.FAILED, SideOutcome.FLAKY)


def test_a_grading_without_outcomes_does_not_make_its_tests_flaky() -> None:
    missing = TestResult(test_id="a", kind=TestKind.FAIL_TO_PASS, outcome=TestOutcome.MISSING)
    timeout = Grade(verdict=Verdict.TEST_TIMEOUT, reward=0.0, tests=(missing,))
    found = judge([grade(FAILED, failing="a"), timeout], [grade(PASSED), grade(PASSED)])
    assert (found.status, found.flaky_tests) == (RowStatus.VALID, ())


# --- records --------------------------------------------------------------------------------------


def test_the_newest_validation_decides_unless_a_person_did(tmp_path: Path) -> None:
    row, other = make_row(), make_row("two")
    folder = tmp_path / "d"
    folder.mkdir()
    append(folder, [record(row, RowStatus.FLAKY), record(other, RowStatus.VALID)])
    assert row_standings(folder, [row, other])[row.task.id].quarantined
    append(folder, [record(row, RowStatus.VALID, run="2")])
    standing = row_standings(folder, [row, other])
    assert not standing[row.task.id].quarantined
    assert standing[row.task.id].status is RowStatus.VALID
    append(folder, [decision(row, quarantined=True), decision(other, quarantined=True)])
    append(folder, [record(row, RowStatus.VALID, run="3"), decision(other, quarantined=False, reason="fine")])
    standing = row_standings(folder, [row, other])
    assert (standing[row.task.id].quarantined, standing[row.task.id].by) == (True, "ada")
    assert (standing[other.task.id].quarantined, standing[other.task.id].reason) == (False, "fine")
    assert len(read(folder)) == 7


@pytest.mark.parametrize("status", [RowStatus.VALID, RowStatus.INFRA])
def test_only_a_fault_of_the_row_quarantines_it(tmp_path: Path, status: RowStatus) -> None:
    row = make_row()
    append(tmp_path, [record(row, status)])
    assert not row_standings(tmp_path, [row])[row.task.id].quarantined


def test_a_run_may_only_look(tmp_path: Path) -> None:
    row = make_row()
    append(tmp_path, [record(row, RowStatus.GOLD_FAILS, quarantine=False)])
    standing = row_standings(tmp_path, [row])[row.task.id]
    assert (standing.status, standing.quarantined) == (RowStatus.GOLD_FAILS, False)


def test_a_row_edited_by_hand_is_a_row_nobody_looked_at(tmp_path: Path) -> None:
    row = make_row()
    append(tmp_path, [record(row, RowStatus.GOLD_FAILS)])
    mended = replace(row, answer=replace(row.answer, gold_patch="another"))
    assert row_standings(tmp_path, [mended]) == {}
    assert row_standings(tmp_path, [row])[row.task.id].quarantined


def test_the_content_of_a_row_is_that_of_its_files(tmp_path: Path) -> None:
    rows = [make_row(), make_row("two", timeout_s=3.0, test_files={"a": "é"}, pass_to_pass=("x", "y"))]
    store.save_dataset(tmp_path, "d", rows, {})
    folder = store.dataset_path(tmp_path, "d")
    tasks, answers = (
        [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for name in ("tasks.jsonl", "answers.jsonl")
    )
    read = store.load_dataset(tmp_path, "d").rows
    for row, again, task, answer in zip(rows, read, tasks, answers, strict=True):
        assert content_hash(task, answer) == row_content(row) == row_content(again)
        older = {name: value for name, value in answer.items() if value}  # before those fields existed
        assert content_hash(task, older) == row_content(row)
    assert row_content(rows[0]) != row_content(rows[1])


def test_a_cut_off_line_is_passed_over_and_written_past(tmp_path: Path) -> None:
    row = make_row()
    append(tmp_path, [record(row, RowStatus.FLAKY)])
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"type": "validation", "id": "2/x", "tas')
    assert len(read(tmp_path)) == 1
    append(tmp_path, [record(row, RowStatus.VALID, run="2")])
    assert [found.run_id for found in read(tmp_path) if isinstance(found, ValidationRecord)] == ["1", "2"]


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    append(tmp_path, [record(make_row(), RowStatus.FLAKY)])
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"type": "validation", "id": "2/x"}\n')
    with pytest.raises(DatasetError, match=r"row 1.*task_id|task_id.*row 1"):
        read(tmp_path)


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    row = make_row()

    def write(run: int) -> None:
        for number in range(20):
            append(tmp_path, [record(row, RowStatus.VALID, run=f"{run}-{number}")])

    threads = [threading.Thread(target=write, args=(run,)) for run in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({found.id for found in read(tmp_path)}) == 80


def test_records_outlive_the_rows_they_are_about(tmp_path: Path) -> None:
    row, other = make_row(), make_row("two")
    store.save_dataset(tmp_path, "d", [row], {})
    folder = store.dataset_path(tmp_path, "d")
    append(folder, [record(row, RowStatus.FLAKY)])
    (folder / SOLVE_RATES_FILE).write_text('{"tasks": {}}')
    store.save_dataset(tmp_path, "d", [row, other], {})
    assert row_standings(folder, [row, other])[row.task.id].quarantined
    assert read_solve_rates(folder) == {}
    assert standings(read(folder), {other.task.id: row_content(other)}) == {}


# --- selection ------------------------------------------------------------------------------------


def test_a_run_leaves_out_what_is_in_quarantine(tmp_path: Path) -> None:
    rows = [make_row(str(number)) for number in range(4)]
    append(tmp_path, [record(rows[1], RowStatus.FLAKY), record(rows[2], RowStatus.VALID)])
    found = select(rows, DatasetConfig(name="d"), tmp_path)
    assert found.rows == (rows[0], rows[2], rows[3])
    assert (found.num_tasks, found.num_quarantined, found.num_unmeasured) == (4, 1, 0)
    everything = select(rows, DatasetConfig(name="d", quarantined="include"), tmp_path)
    assert everything.rows == tuple(rows)


def test_a_run_may_choose_by_measured_solve_rate(tmp_path: Path) -> None:
    rows = [make_row(name) for name in ("none", "some", "all", "new", "few")]
    counts = {"none": (0, 8), "some": (3, 8), "all": (8, 8), "few": (0, 2)}
    tasks = {row.task.id: counts[row.task.instance_id] for row in rows if row.task.instance_id in counts}
    (tmp_path / SOLVE_RATES_FILE).write_text(json.dumps({"format": 1, "tasks": tasks}))

    def chosen(**settings: object) -> list[str]:
        config = DatasetConfig.model_validate({"name": "d", **settings})
        return [row.task.instance_id for row in select(rows, config, tmp_path).rows]

    assert chosen(solve_rate_min=0.01, solve_rate_max=0.99) == ["some", "new", "few"]
    assert chosen(solve_rate_min=0.01, solve_rate_samples=2) == ["some", "all", "new"]
    assert chosen(solve_rate_max=0) == ["none", "new", "few"]
    found = select(rows, DatasetConfig(name="d", solve_rate_max=0.5), tmp_path)
    assert (found.num_outside, found.num_unmeasured) == (1, 2)


def test_what_cannot_be_selected_says_why(tmp_path: Path) -> None:
    row = make_row()
    with pytest.raises(DatasetError, match="never measured.*dataset difficulty"):
        select([row], DatasetConfig(name="d", solve_rate_min=0.1), tmp_path)
    (tmp_path / SOLVE_RATES_FILE).write_text('{"tasks": {"x": 3}}')
    with pytest.raises(DatasetError, match="is broken"):
        select([row], DatasetConfig(name="d", solve_rate_min=0.1), tmp_path)
    append(tmp_path, [record(row, RowStatus.FLAKY)])
    with pytest.raises(DatasetError, match="no task of 'd' is left: of 1, 1 are in quarantine"):
        select([row], DatasetConfig(name="d"), tmp_path)
    with pytest.raises(ConfigError, match=r"solve_rate_min is 0\.9, above"):
        resolve("quickstart", {"dataset.solve_rate_min": 0.9, "dataset.solve_rate_max": 0.1})
    with pytest.raises(ConfigError, match="reuse_verdicts must be off"):
        resolve("validate-dataset", {"grading.reuse_verdicts": True})


def test_reasons_say_what_the_grading_said() -> None:
    lost = judge([grade(INFRA, detail="no such image")], ())
    assert (lost.status, lost.reason) == (RowStatus.INFRA, "no such image")
    gold = [grade(INFRA, detail="gone"), grade(FAILED, failing="a", detail="a failed")]
    assert judge([grade(FAILED, failing="ab")], gold).reason == "the gold patch does not pass: a failed"
