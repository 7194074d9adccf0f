"""Assessment of rows from repeated gradings, its records on disk, and selection of rows for a run."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.recipes import resolve
from engine.config.rollout import DatasetConfig
from engine.datasets import store
from engine.datasets.health import judge, read_row_health, read_solve_rates, row_content, select
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
    row_health,
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
        # Gradings lost to infrastructure count neither for nor against the row.
        ([FAILED, INFRA], [PASSED, INFRA], RowStatus.VALID),
        ([INFRA], [FAILED, FAILED], RowStatus.GOLD_FAILS),
    ],
)
def test_judge_derives_the_row_status(noop: list[Verdict], gold: list[Verdict], status: RowStatus) -> None:
    failing = {PASSED: "", FAILED: "ab", Verdict.TAMPERED: "ab"}

    def graded(verdicts: list[Verdict]) -> list[Grade]:
        return [grade(v, failing=failing.get(v, ""), tests="ab" if v in failing else "") for v in verdicts]

    assessment = judge(graded(noop), graded(gold))
    assert assessment.status is status
    assert bool(assessment.reason) == (status not in (RowStatus.VALID, RowStatus.INFRA))


def test_flaky_test_is_named_even_if_the_verdict_is_stable() -> None:
    noop = [grade(FAILED, failing="a"), grade(FAILED, failing="ab")]
    assessment = judge(noop, [grade(PASSED), grade(PASSED)])
    assert (assessment.status, assessment.flaky_tests) == (RowStatus.FLAKY, ("b",))
    assert "flaky tests: b" in assessment.reason
    repeated = judge([grade(FAILED, failing="a")], [grade(PASSED), grade(FAILED, failing="b"), grade(PASSED)])
    assert "with the gold patch it passed 2 of 3 times" in repeated.reason
    assert (repeated.noop.outcome, repeated.gold.outcome) == (SideOutcome.FAILED, SideOutcome.FLAKY)


def test_grading_without_outcomes_does_not_make_its_tests_flaky() -> None:
    missing = TestResult(test_id="a", kind=TestKind.FAIL_TO_PASS, outcome=TestOutcome.MISSING)
    timeout = Grade(verdict=Verdict.TEST_TIMEOUT, reward=0.0, tests=(missing,))
    assessment = judge([grade(FAILED, failing="a"), timeout], [grade(PASSED), grade(PASSED)])
    assert (assessment.status, assessment.flaky_tests) == (RowStatus.VALID, ())


# --- records --------------------------------------------------------------------------------------


def test_newest_validation_decides_unless_a_person_decided(tmp_path: Path) -> None:
    row, other = make_row(), make_row("two")
    folder = tmp_path / "d"
    folder.mkdir()
    append(folder, [record(row, RowStatus.FLAKY), record(other, RowStatus.VALID)])
    assert read_row_health(folder, [row, other])[row.task.id].quarantined
    append(folder, [record(row, RowStatus.VALID, run="2")])
    health = read_row_health(folder, [row, other])
    assert not health[row.task.id].quarantined
    assert health[row.task.id].status is RowStatus.VALID
    append(folder, [decision(row, quarantined=True), decision(other, quarantined=True)])
    append(folder, [record(row, RowStatus.VALID, run="3"), decision(other, quarantined=False, reason="fine")])
    health = read_row_health(folder, [row, other])
    assert (health[row.task.id].quarantined, health[row.task.id].by) == (True, "ada")
    assert (health[other.task.id].quarantined, health[other.task.id].reason) == (False, "fine")
    assert len(read(folder)) == 7


@pytest.mark.parametrize("status", [RowStatus.VALID, RowStatus.INFRA])
def test_valid_and_infra_records_do_not_quarantine_a_row(tmp_path: Path, status: RowStatus) -> None:
    row = make_row()
    append(tmp_path, [record(row, status)])
    assert not read_row_health(tmp_path, [row])[row.task.id].quarantined


def test_validation_without_quarantine_only_records_the_status(tmp_path: Path) -> None:
    row = make_row()
    append(tmp_path, [record(row, RowStatus.GOLD_FAILS, quarantine=False)])
    health = read_row_health(tmp_path, [row])[row.task.id]
    assert (health.status, health.quarantined) == (RowStatus.GOLD_FAILS, False)


def test_edited_row_has_no_standing(tmp_path: Path) -> None:
    row = make_row()
    append(tmp_path, [record(row, RowStatus.GOLD_FAILS)])
    mended = replace(row, answer=replace(row.answer, gold_patch="another"))
    assert read_row_health(tmp_path, [mended]) == {}
    assert read_row_health(tmp_path, [row])[row.task.id].quarantined


def test_row_content_equals_the_hash_of_its_stored_lines(tmp_path: Path) -> None:
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


def test_truncated_line_is_skipped_and_later_records_are_appended(tmp_path: Path) -> None:
    row = make_row()
    append(tmp_path, [record(row, RowStatus.FLAKY)])
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"type": "validation", "id": "2/x", "tas')
    assert len(read(tmp_path)) == 1
    append(tmp_path, [record(row, RowStatus.VALID, run="2")])
    assert [entry.run_id for entry in read(tmp_path) if isinstance(entry, ValidationRecord)] == ["1", "2"]


def test_invalid_record_error_names_row_and_field(tmp_path: Path) -> None:
    append(tmp_path, [record(make_row(), RowStatus.FLAKY)])
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"type": "validation", "id": "2/x"}\n')
    with pytest.raises(DatasetError, match=r"row 1.*task_id|task_id.*row 1"):
        read(tmp_path)


def test_concurrent_writers_lose_no_records(tmp_path: Path) -> None:
    row = make_row()

    def write(run: int) -> None:
        for number in range(20):
            append(tmp_path, [record(row, RowStatus.VALID, run=f"{run}-{number}")])

    threads = [threading.Thread(target=write, args=(run,)) for run in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({entry.id for entry in read(tmp_path)}) == 80


def test_records_survive_saving_the_dataset_again(tmp_path: Path) -> None:
    row, other = make_row(), make_row("two")
    store.save_dataset(tmp_path, "d", [row], {})
    folder = store.dataset_path(tmp_path, "d")
    append(folder, [record(row, RowStatus.FLAKY)])
    (folder / SOLVE_RATES_FILE).write_text('{"tasks": {}}')
    store.save_dataset(tmp_path, "d", [row, other], {})
    assert read_row_health(folder, [row, other])[row.task.id].quarantined
    assert read_solve_rates(folder) == {}
    assert row_health(read(folder), {other.task.id: row_content(other)}) == {}


# --- selection ------------------------------------------------------------------------------------


def test_select_excludes_quarantined_rows(tmp_path: Path) -> None:
    rows = [make_row(str(number)) for number in range(4)]
    append(tmp_path, [record(rows[1], RowStatus.FLAKY), record(rows[2], RowStatus.VALID)])
    selection = select(rows, DatasetConfig(name="d"), tmp_path)
    assert selection.rows == (rows[0], rows[2], rows[3])
    assert (selection.num_tasks, selection.num_quarantined, selection.num_unmeasured) == (4, 1, 0)
    everything = select(rows, DatasetConfig(name="d", quarantined="include"), tmp_path)
    assert everything.rows == tuple(rows)


def test_select_filters_by_measured_solve_rate(tmp_path: Path) -> None:
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
    selection = select(rows, DatasetConfig(name="d", solve_rate_max=0.5), tmp_path)
    assert (selection.num_outside, selection.num_unmeasured) == (1, 2)


def strength(rejected: int, graded: int) -> dict[str, object]:
    return {"kinds": {"fault": {"graded": graded, "rejected": rejected}}, "passed": ["a fault in f, a.py:3"]}


def test_select_filters_by_measured_test_strength(tmp_path: Path) -> None:
    rows = [make_row(name) for name in ("weak", "strong", "new", "none")]
    with pytest.raises(DatasetError, match="never measured.*--wrong-patches"):
        select(rows, DatasetConfig(name="d", min_strength=0.5), tmp_path)
    append(
        tmp_path,
        [
            record(rows[0], RowStatus.VALID, strength=strength(9, 10)),
            record(rows[0], RowStatus.VALID, run="2", strength=strength(4, 10)),
            record(rows[0], RowStatus.VALID, run="3"),
            record(rows[1], RowStatus.VALID, strength=strength(8, 10)),
            record(rows[3], RowStatus.VALID, strength={"kinds": {}}),
        ],
    )
    selection = select(rows, DatasetConfig(name="d", min_strength=0.8), tmp_path)
    assert [row.task.instance_id for row in selection.rows] == ["strong", "new", "none"]
    assert (selection.num_weak, selection.num_quarantined, selection.num_outside) == (1, 0, 0)
    everything = select(rows, DatasetConfig(name="d", min_strength=0.4), tmp_path)
    assert everything.rows == tuple(rows), "the newest measurement counts, not the newest validation"


def test_events_do_not_name_the_wrong_patches_that_pass() -> None:
    found = record(make_row(), RowStatus.VALID, strength=strength(4, 10))
    assert found.without_secrets().strength is not None
    assert "a.py" not in found.without_secrets().model_dump_json()
    assert found.strength is not None
    assert found.strength.passed


def test_failed_selection_reports_the_reason(tmp_path: Path) -> None:
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


def test_reasons_contain_the_detail_of_the_grading() -> None:
    lost = judge([grade(INFRA, detail="no such image")], ())
    assert (lost.status, lost.reason) == (RowStatus.INFRA, "no such image")
    gold = [grade(INFRA, detail="gone"), grade(FAILED, failing="a", detail="a failed")]
    assert judge([grade(FAILED, failing="ab")], gold).reason == "the gold patch does not pass: a failed"
