"""Scans of stored trajectories: by workers after ingest, over the past, and with expressions of people."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection

from engine.errors import HostileInputError
from engine.scanners import patterns
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.page_builders import Yard, make_yard
from tests.builders.web.web_builders import launched, post, relaunched
from webapp.core import dispatch
from webapp.ingestion.services.trajectories import import_lines
from webapp.models import EnteredScanner, Run, Scan, Trajectory
from webapp.rollouts.selectors import scans as reads
from webapp.rollouts.services import scanners, scans
from webapp.rollouts.services.scans import LOCK
from workers import app as tasks

pytestmark = pytest.mark.django_db


@pytest.fixture
def yard() -> Yard:
    return make_yard(iterations=2, group_size=2)


def ended(run: Run) -> list[Trajectory]:
    return list(Trajectory.objects.filter(run=run, state="finished").order_by("pk"))


def edited(stream: Stream, key: dict[str, Any], *, termination: str = "submitted") -> None:
    """Add a rollout that changes a test."""
    stream.add("trajectory_started", ref=key, sandbox_id="s")
    stream.step(key, 0, tool="execute_bash", arguments={"cmd": "sed -i s/1/2/ tests/test_a.py"})
    stream.finished(key, steps=1, termination=termination)


def test_ingest_sends_a_task_that_scans_what_ended(
    monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    edited(stream, ref(0, "a", 0))
    stream.trajectory(ref(0, "a", 1), finish=False)
    sent: list[tuple[Any, ...]] = []
    monkeypatch.setattr("webapp.core.dispatch.send", lambda *arguments: sent.append(arguments))
    told: list[Any] = []
    monkeypatch.setattr(
        "webapp.core.services.notifications.run_changed", lambda *arguments: told.append(arguments)
    )
    with django_capture_on_commit_callbacks(execute=True):
        post(claim, stream)
    [row] = ended(run)
    assert [arguments for arguments in sent if arguments[0] == "trainyard.scan"] == [("trainyard.scan",)]
    monkeypatch.setattr(tasks, "send", lambda *_: None)
    tasks.scan()
    scan = Scan.objects.get()
    assert scan.versions == reads.current_versions()
    assert scan.hits == {
        "edited_tests": {"count": 1, "first": [[0, "tests/test_a.py"]]},
    }
    run.refresh_from_db()
    assert told[-1:] == [(run.pk, run.last_seq, {
        "after": run.last_seq, "areas": ["scans"], "groups": [], "rollouts": [["train", 0, "a", 0]],
    })]  # fmt: skip


def test_a_scan_is_sent_once_until_it_begins(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    memory = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": "scans"}
    settings.CACHES = {"default": memory}
    sent: list[str] = []
    broker = SimpleNamespace(send_task=lambda name, **_: sent.append(name))
    monkeypatch.setattr(dispatch, "_producer", lambda: broker)
    for name in (dispatch.TaskName.SCAN, dispatch.TaskName.WATCH) * 2:
        dispatch.send(name)
    assert sent == ["trainyard.scan", "trainyard.watch", "trainyard.watch"]
    tasks.scan()
    dispatch.send(dispatch.TaskName.SCAN)
    assert sent[3:] == ["trainyard.scan"]


def test_a_repeated_trajectory_loses_its_hits_until_it_ends_again() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    edited(stream, ref(0, "a", 0))
    post(claim, stream)
    scans.scan(trajectory_ids=[row.pk for row in ended(run)])
    assert "edited_tests" in Scan.objects.get().hits
    later = Stream(epoch=2, first_seq=stream.next_seq)
    newer = relaunched(run, claim)
    later.started(resumed_from=0)
    later.trajectory(ref(0, "a", 0))
    post(newer, later)
    assert Scan.objects.get().versions == {}
    scans.scan_pending()
    assert "edited_tests" not in Scan.objects.get().hits


def test_tasks_scan_one_batch_each_one_at_a_time(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "BATCH", 3)
    sent: list[tuple[Any, ...]] = []
    monkeypatch.setattr(tasks, "send", lambda *arguments: sent.append(arguments))
    ids = [row.pk for row in ended(yard.run)]
    assert len(ids) > 7
    scanned = Scan.objects.exclude(versions={})
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [LOCK])
            tasks.scan()
            cursor.execute("SELECT pg_advisory_unlock(%s)", [LOCK])
        assert not scanned.exists()
        assert not sent, "the process that scans sends the next task"
    finally:
        other.close()
    tasks.scan()
    assert set(scanned.values_list("pk", flat=True)) == set(ids[-3:]), "the newest first"
    Scan.objects.filter(pk=ids[-1]).update(fingerprint="0")
    while sent:
        assert sent.pop() == ("trainyard.scan",)
        tasks.scan()
    assert scanned.count() == len(ids)
    assert not reads.pending().exists()
    monkeypatch.setattr(scans, "TASK_S", -1.0)
    Scan.objects.update(fingerprint="")
    assert scans.scan_pending()
    assert reads.pending().count() == len(ids) - 1, "a late task ends after one trajectory"


def test_a_later_attempt_during_the_scan_is_scanned_again(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ended(yard.run)[-1]

    def view(row: Trajectory) -> Any:
        Trajectory.objects.filter(pk=row.pk).update(epoch=row.epoch + 1)
        return read(row)

    read = scans.view
    monkeypatch.setattr(scans, "view", view)
    assert scans.scan(trajectory_ids=[row.pk]) == 0
    assert reads.pending().filter(pk=row.pk).exists()


def test_a_changed_expression_is_scanned_again(yard: Yard) -> None:
    row = ended(yard.run)[0]
    scans.scan(trajectory_ids=[row.pk])
    scanner = scanners.save(name="compares", pattern=r"\bcomparison\b", place="thoughts")
    assert reads.pending().filter(pk=row.pk).exists()
    scans.scan(trajectory_ids=[row.pk])
    assert not reads.pending().filter(pk=row.pk).exists()
    hit = Scan.objects.get(pk=row.pk).hits["compares"]
    assert (hit["count"], hit["first"][0][0]) == (row.num_steps, 0)
    assert scanners.save(name="compares", pattern="comparison", place="actions").version == 2
    assert not Trajectory.objects.filter(reads.has_hit("compares")).exists(), "hits of version 1 do not count"
    scans.scan(trajectory_ids=[row.pk])
    assert "compares" not in Scan.objects.get(pk=row.pk).hits
    scanners.remove(scanner=scanner)
    assert not reads.pending().filter(pk=row.pk).exists()
    assert scanners.save(name="compares", pattern="comparison", place="actions").version == 3


def test_an_expression_that_is_slow_several_times_is_no_longer_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "MOST_SLOW", 2)
    run, claim = launched()
    stream = Stream()
    stream.started()
    for index in range(3):
        key = ref(0, "a", index)
        stream.add("trajectory_started", ref=key)
        stream.step(key, 0, thought="a" * 60 + "b")
        stream.finished(key, steps=1)
    post(claim, stream)
    slow = scanners.save(name="slow", pattern="(a+)+$", place="thoughts")
    scanners.save(name="quick", pattern="a+b", place="thoughts")
    first, second, third = ended(run)
    scans.scan(trajectory_ids=[first.pk])
    slow.refresh_from_db()
    assert (slow.num_slow, slow.problem) == (1, "")
    scans.scan(trajectory_ids=[second.pk, third.pk])
    slow.refresh_from_db()
    assert f"took more than 2 s of processor time (trajectory {second.pk})" in slow.problem
    for scan in Scan.objects.all():
        assert "slow" not in scan.versions
        assert set(scan.hits) == {"quick"}
    assert not reads.pending().exists(), "a slow trajectory is not searched again"
    saved = scanners.save(name="slow", pattern="(a+)+$", place="thoughts")
    assert (saved.num_slow, saved.problem, saved.version) == (0, "", 2)


@pytest.mark.parametrize("error", [HostileInputError("crashed the process (-9)"), MemoryError()])
def test_what_cannot_be_read_stops_no_scanner(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def search(*_: object) -> Any:
        raise error

    scanners.save(name="mine", pattern="x", place="thoughts")
    monkeypatch.setattr(patterns, "scan", search)
    row = ended(yard.run)[0]
    scans.scan(trajectory_ids=[row.pk])
    scan = Scan.objects.get(pk=row.pk)
    assert "mine" not in scan.versions
    assert ("edited_tests" in scan.versions) is isinstance(error, HostileInputError)
    assert not reads.pending().filter(pk=row.pk).exists()
    assert EnteredScanner.objects.get().problem == ""


def test_large_and_odd_steps_are_scanned(yard: Yard) -> None:
    key = yard.ref(1, 0, 7)
    yard.stream.add("trajectory_started", ref=key)
    calls: tuple[dict[str, Any], ...] = (
        {"command": "create", "path": ["x"], "file_text": {"a": 1}},
        {"command": "str_replace", "path": "tests/test_a.py"},
        {"cmd": "echo " + "x" * 1_200_000},
        {"path": None},
    )
    for index, arguments in enumerate(calls):
        tool = "execute_bash" if "cmd" in arguments else "file_editor"
        yard.stream.step(
            key, index, tool=tool, arguments=arguments, observation="y" * 1_000_000, thought="z" * 500_000
        )
    yard.stream.finished(key, steps=4)
    yard.post()
    row = Trajectory.objects.get(run=yard.run, index=7)
    assert scans.scan(trajectory_ids=[row.pk]) == 1
    assert Scan.objects.get(pk=row.pk).hits["edited_tests"]["first"] == [[1, "tests/test_a.py"]]


def test_a_trajectory_that_cannot_be_read_does_not_hold_up_the_others(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ended(yard.run)

    def view(row: Trajectory) -> Any:
        if row == rows[-1]:
            raise RecursionError
        return read(row)

    read = scans.view
    monkeypatch.setattr(scans, "view", view)
    assert scans.scan_pending()
    assert not reads.pending().exists()
    assert [scan.pk for scan in Scan.objects.filter(versions={})] == [rows[-1].pk]


def test_unfinished_and_cancelled_rollouts_are_not_scanned() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.trajectory(ref(0, "a", 0), finish=False)
    edited(stream, ref(0, "a", 1), termination="cancelled")
    post(claim, stream)
    assert not Scan.objects.exists()
    assert scans.scan(trajectory_ids=[*Trajectory.objects.values_list("pk", flat=True), 999_999]) == 0


def test_other_environments_are_scanned_with_expressions_only(yard: Yard) -> None:
    config = yard.run.config | {"environment": {"type": "frozenlake"}}
    Run.objects.filter(pk=yard.run.pk).update(config=config)
    scanners.save(name="lines", pattern="line", place="thoughts")
    row = ended(yard.run)[0]
    scans.scan(trajectory_ids=[row.pk])
    assert set(Scan.objects.get(pk=row.pk).hits) == {"lines"}


def test_imported_trajectories_are_scanned() -> None:
    key = {"iteration": 0, "phase": "imported", "task_id": "t", "index": 0}
    events = (
        {"type": "trajectory_started", "ref": key},
        {"type": "step_finished", "ref": key, "index": 0, "tool": "file_editor", "thought": "Edge cases?",
         "arguments": {"command": "view", "path": "a.py"}, "observation": "1 x", "response": ""},
        {"type": "trajectory_finished", "ref": key, "termination": "submitted", "num_steps": 1,
         "verdict": None, "reward": None},
    )  # fmt: skip
    run = import_lines(file_name="x.jsonl", lines=[json.dumps(event).encode() for event in events])
    assert scans.scan_pending()
    assert set(Scan.objects.get(trajectory__run=run).hits) == {
        "edge_cases_considered",
        "submitted_without_change",
    }


def test_shares_count_current_versions_by_run_and_iteration(yard: Yard) -> None:
    scans.scan_pending()
    rows = ended(yard.run)
    share = reads.shares([yard.run.pk])[yard.run.pk]["submitted_without_change"]
    assert share.scanned == len(rows)
    over_time = reads.shares_over_time(yard.run.pk)
    train = [over_time["train", index]["ran_project_tests"] for index in (0, 1)]
    expected = [
        len(
            [
                s
                for s in Scan.objects.filter(trajectory__phase="train", trajectory__iteration=index)
                if "ran_project_tests" in s.hits
            ]
        )
        for index in (0, 1)
    ]
    assert [one.found for one in train] == expected
    assert sum(expected) > 0
    Scan.objects.filter(pk=rows[0].pk).update(versions={"ran_project_tests": 0})
    counted = reads.shares([yard.run.pk])[yard.run.pk]
    assert counted["ran_project_tests"].scanned == len(rows) - 1
    assert reads.shares([yard.run.pk], newest=3)[yard.run.pk]["gave_up"].scanned == 3
