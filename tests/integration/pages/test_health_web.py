"""Mirror of validation records: live events, the whole file, and decisions of users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.datasets.health import read_row_health
from engine.datasets.store import load_dataset, save_dataset
from engine.errors import DatasetError
from engine.events.health import (
    FILE,
    DecisionRecord,
    RowStatus,
    ValidationRecord,
    append,
)
from engine.types import TaskRow
from tests.builders.web.event_builders import Stream
from tests.builders.web.web_builders import launched, make_user, post
from tests.unit.datasets.test_health import make_row, strength
from tests.unit.datasets.test_health import record as make_record
from webapp.core.permissions import Role
from webapp.datasets.services import datasets, quarantine
from webapp.models import AuditEntry, Dataset, QuarantineDecision, Run, Task, Validation
from webapp.runs.services import runs

pytestmark = pytest.mark.django_db


@pytest.fixture
def home(settings: Any, tmp_path: Path) -> Path:
    settings.TRAINYARD_HOME = tmp_path
    return tmp_path


@pytest.fixture
def rows(home: Path) -> list[TaskRow]:
    """Rows of a dataset on disk and in the database."""
    task_rows = [make_row(f"row-{number}") for number in range(4)]
    save_dataset(home, "d", task_rows, {})
    datasets.sync(name="d")
    return task_rows


def folder(home: Path) -> Path:
    return home / "datasets" / "d"


def validation_run(**overrides: Any) -> tuple[Run, Any, Stream]:
    run, claim = launched(runs.create(recipe="validate-dataset", overrides={"dataset.name": "d"} | overrides))
    stream = Stream()
    stream.started()
    return run, claim, stream


def add_validation(stream: Stream, record: ValidationRecord) -> None:
    stream.add("task_validated", record=record.model_dump(mode="json"))


def task_of(row: TaskRow) -> Task:
    return Task.objects.get(key=row.task.id)


def assert_mirrored(home: Path, rows: list[TaskRow]) -> None:
    """Assert that the tables agree with the file."""
    row_health = read_row_health(folder(home), rows)
    for row in rows:
        task, health = task_of(row), row_health.get(row.task.id)
        assert task.health == (health.status if health and health.status else "")
        assert task.quarantined == (health.quarantined if health else False)
        assert task.quarantine_reason == (health.reason if health else "")
        assert task.quarantine_by == (health.by if health else "")
        assert task.strength == (health.strength if health else None)


def test_validation_events_update_the_tasks_as_they_arrive(home: Path, rows: list[TaskRow]) -> None:
    run, claim, stream = validation_run()
    assert run.dataset is not None
    flaky = make_record(rows[0], RowStatus.FLAKY, run=str(run.pk), flaky_tests=["t::a\0"], num_flaky_tests=1)
    add_validation(stream, flaky)
    add_validation(stream, make_record(rows[1], RowStatus.VALID, run=str(run.pk), reason=""))
    post(claim, stream)
    task = task_of(rows[0])
    assert (task.health, task.quarantined, task.quarantine_reason) == ("flaky", True, "is flaky")
    assert task.validation is not None
    assert (task.validation.run, task.validation.flaky_tests) == (run, ["t::a\ufffd"])
    assert task.validation.gold_seconds == 0.5
    assert (task_of(rows[1]).health, task_of(rows[1]).quarantined) == ("valid", False)
    assert (task_of(rows[2]).health, task_of(rows[2]).validation) == ("", None)


def test_last_validation_of_a_task_in_a_run_replaces_earlier_ones(home: Path, rows: list[TaskRow]) -> None:
    run, claim, stream = validation_run()
    for status in (RowStatus.INFRA, RowStatus.VALID):
        add_validation(stream, make_record(rows[0], status, run=str(run.pk)))
    post(claim, stream)
    assert [v.status for v in Validation.objects.all()] == ["valid"]
    append(folder(home), [make_record(rows[0], RowStatus.VALID, run=str(run.pk))])
    datasets.sync(name="d")
    assert Validation.objects.count() == 1


def test_an_event_after_a_synchronisation_loses_no_passed_wrong_patch(
    home: Path, rows: list[TaskRow]
) -> None:
    run, claim, stream = validation_run()
    found = make_record(rows[0], RowStatus.VALID, run=str(run.pk), strength=strength(3, 4))
    append(folder(home), [found])
    datasets.sync(name="d")
    add_validation(stream, found.without_secrets())
    post(claim, stream)
    datasets.sync(name="d")
    measured = Validation.objects.get().strength
    assert measured is not None
    assert measured["passed"] == ["a fault in f, a.py:3"]


def test_mirrored_file_agrees_with_the_standings_read_by_engines(home: Path, rows: list[TaskRow]) -> None:
    append(
        folder(home),
        [
            make_record(rows[0], RowStatus.FLAKY),
            make_record(rows[0], RowStatus.VALID, run="2", time=2.0, reason=""),
            make_record(rows[1], RowStatus.GOLD_FAILS),
            make_record(rows[2], RowStatus.NOOP_PASSES, quarantine=False),
            make_record(rows[3], RowStatus.VALID, reason=""),
            DecisionRecord(
                id="a", task_id=rows[3].task.id, content=make_record(rows[3], RowStatus.VALID).content,
                time=5.0, quarantined=True, reason="leaks", by="ada",
            ),
            make_record(rows[0], RowStatus.VALID, run="3", time=3.0, strength=strength(3, 4)),
            make_record(rows[0], RowStatus.VALID, run="4", time=4.0),
            make_record(rows[2], RowStatus.VALID, run="4", time=4.0, strength={"kinds": {}}),
        ],
    )  # fmt: skip
    datasets.sync(name="d")
    assert_mirrored(home, rows)
    assert Validation.objects.filter(task=task_of(rows[0])).count() == 4
    before = list(Validation.objects.values_list("pk", "status"))
    Dataset.objects.update(health_checksum="")
    datasets.sync(name="d")
    assert list(Validation.objects.values_list("pk", "status")) == before
    assert QuarantineDecision.objects.count() == 1


def test_changed_row_loses_its_validation_status(home: Path, rows: list[TaskRow]) -> None:
    append(folder(home), [make_record(rows[0], RowStatus.GOLD_FAILS)])
    datasets.sync(name="d")
    assert task_of(rows[0]).quarantined
    path = folder(home) / "answers.jsonl"
    path.write_text(path.read_text().replace('"gold_patch": "g"', '"gold_patch": "mended"', 1))
    datasets.sync(name="d")
    changed = list(load_dataset(home, "d").rows)
    assert_mirrored(home, changed)
    assert (task_of(rows[0]).health, task_of(rows[0]).quarantined) == ("", False)
    assert Validation.objects.count() == 1  # history stays


def test_quarantine_decisions_of_users_apply_to_engines(home: Path, rows: list[TaskRow]) -> None:
    ada = make_user("ada", Role.OPERATOR)
    append(folder(home), [make_record(rows[0], RowStatus.FLAKY)])
    datasets.sync(name="d")
    quarantine.decide(task=task_of(rows[0]), quarantined=False, reason=" good enough ", actor=ada)
    quarantine.decide(task=task_of(rows[1]), quarantined=True, reason="leaks the answer", actor=ada)
    assert_mirrored(home, rows)
    assert (task_of(rows[0]).quarantined, task_of(rows[0]).quarantine_by) == (False, "ada")
    health = read_row_health(folder(home), rows)
    assert (health[rows[1].task.id].quarantined, health[rows[1].task.id].by) == (True, "ada")
    datasets.sync(name="d")
    assert QuarantineDecision.objects.filter(actor=ada).count() == 2
    actions = AuditEntry.objects.filter(actor=ada).order_by("pk").values_list("action", "target")
    assert list(actions) == [
        ("task.release", "task row-0 of dataset d"),
        ("task.quarantine", "task row-1 of dataset d"),
    ]


def test_failed_quarantine_decision_changes_nothing(home: Path, rows: list[TaskRow]) -> None:
    task = task_of(rows[0])
    with pytest.raises(DatasetError, match="say why"):
        quarantine.decide(task=task, quarantined=True, reason="  ")
    (folder(home) / FILE).mkdir()
    with pytest.raises(DatasetError, match="cannot write"):
        quarantine.decide(task=task, quarantined=True, reason="x")
    assert not task_of(rows[0]).quarantined
    assert (
        QuarantineDecision.objects.count() == AuditEntry.objects.filter(action="task.quarantine").count() == 0
    )
    task.active = False
    with pytest.raises(DatasetError, match="no longer in the dataset"):
        quarantine.decide(task=task, quarantined=True, reason="x")
    imported = Dataset.objects.create(name="elsewhere")
    stray = Task.objects.create(dataset=imported, key="k", instance_id="i", split="train")
    with pytest.raises(DatasetError, match="has no folder here"):
        quarantine.decide(task=stray, quarantined=True, reason="x")


def test_finished_validation_requests_a_sync_without_owning_the_dataset(
    home: Path, rows: list[TaskRow], django_capture_on_commit_callbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, claim, stream = validation_run()
    stream.add("run_finished", state="succeeded", summary={"dataset": "d", "rows": 4})
    sent: list[tuple[Any, ...]] = []
    monkeypatch.setattr("webapp.core.dispatch.send", lambda *arguments: sent.append(arguments))
    with django_capture_on_commit_callbacks(execute=True):
        post(claim, stream)
    assert ("trainyard.sync_dataset", "d") in sent


def test_run_stores_the_selection_of_its_tasks(home: Path, rows: list[TaskRow]) -> None:
    run, claim = launched(runs.create(recipe="quickstart", overrides={"dataset.name": "d"}))
    stream = Stream()
    stream.started()
    for split, quarantined in (("train", 2), ("heldout", 0)):
        stream.add(
            "tasks_selected", dataset="d", split=split, num_tasks=9, num_selected=9 - quarantined,
            num_quarantined=quarantined,
        )  # fmt: skip
    post(claim, stream)
    run.refresh_from_db()
    assert run.selection["train"] == {
        "num_tasks": 9, "num_selected": 7, "num_quarantined": 2, "num_outside": 0, "num_weak": 0,
        "num_unmeasured": 0,
    }  # fmt: skip
    assert set(run.selection) == {"train", "heldout"}
