"""Reconciliation of lost attempts with a launcher without processes."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError
from django.utils import timezone

from engine.config.run import AnyRun
from engine.types import RunState
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.web_builders import launched, make_run, post, relaunched
from webapp.models import Alert, Iteration, Run, RunAttempt, Score, Trajectory
from webapp.runs.selectors.folders import run_folder
from webapp.runs.services import attempts, runs
from webapp.runs.services.attempts import Claim
from workers import launchers, reconciler
from workers.launchers.base import LaunchOrder, ProcessReport, ProcessState, Recorder

pytestmark = pytest.mark.django_db


@dataclass
class FakeLauncher:
    """Launcher of one fake process, which writes its last events when it is killed."""

    state: ProcessState = ProcessState.ALIVE
    out_of_memory: bool = False
    last_events: bytes = b""
    spool: Path = Path()
    calls: list[str] = field(default_factory=list)

    def check(self, run: AnyRun) -> None:
        """Accept every run."""

    def launch(self, order: LaunchOrder, record: Recorder) -> None:
        """Record a live process."""
        self.calls.append("launch")
        self.state = ProcessState.ALIVE
        record("here", "new")

    def poll(self, *, host: str, handle: str) -> ProcessReport:
        """Return the state of the process."""
        return ProcessReport(self.state, out_of_memory=self.out_of_memory)

    def ask_to_stop(self, *, host: str, handle: str) -> None:
        """Record the request."""
        self.calls.append("ask")

    def kill(self, *, host: str, handle: str) -> None:
        """End the process and append its last events to its spool."""
        self.calls.append("kill")
        self.state = ProcessState.DEAD
        with self.spool.open("ab") as file:
            file.write(self.last_events)


@pytest.fixture
def launcher(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLauncher:
    """Replace the local launcher by a fake one, in a private data folder."""
    settings.TRAINYARD_HOME = tmp_path
    fake = FakeLauncher()
    monkeypatch.setitem(launchers.LAUNCHERS, "local", fake)
    return fake


def lost_run(launcher: FakeLauncher, state: ProcessState = ProcessState.DEAD) -> tuple[Run, Claim, Stream]:
    """Create a running run whose process has been silent for an hour since its first event."""
    run, claim = launched()
    attempts.record_process(run_id=run.pk, epoch=1, host="here", handle="old", run_dir="")
    launcher.state, launcher.spool = state, run_folder(run.pk) / "events.jsonl"
    launcher.spool.parent.mkdir(parents=True)
    stream = Stream()
    stream.started()
    post(claim, stream)
    launcher.spool.write_bytes(stream.body())
    past = timezone.now() - timedelta(hours=1)
    os.utime(launcher.spool, (past.timestamp(), past.timestamp()))
    Run.objects.filter(pk=run.pk).update(heartbeat_at=past, state_changed_at=past)
    return run, claim, stream


def test_events_written_by_a_killed_process_are_stored(launcher: FakeLauncher) -> None:
    run, _, stream = lost_run(launcher, ProcessState.ALIVE)
    stream.trajectory(ref(0, "a", 0))
    stream.add("run_finished", state="succeeded")
    launcher.last_events = stream.body(1)
    reconciler.reconcile()
    run.refresh_from_db()
    assert (run.state, run.last_seq, run.epoch) == ("succeeded", len(stream.lines), 1)
    assert Trajectory.objects.get(run=run).reward == 1.0
    assert launcher.calls == ["kill"], "what finished is not started again"


def test_a_lost_attempt_is_replaced_once_its_last_events_are_stored(launcher: FakeLauncher) -> None:
    run, _, stream = lost_run(launcher)
    stream.trajectory(ref(0, "a", 0))
    launcher.spool.write_bytes(stream.body())
    reconciler.reconcile()
    run.refresh_from_db()
    assert (run.state, run.epoch, run.last_seq) == ("starting", 2, len(stream.lines))
    assert launcher.calls == ["launch"]
    launch = json.loads((launcher.spool.parent / "launch.json").read_text())
    assert (launch["epoch"], launch["acked_seq"]) == (2, len(stream.lines))
    assert Alert.objects.get(run=run).code == "run.relaunched"
    newest = RunAttempt.objects.get(run=run, ended_at=None)
    assert (newest.epoch, newest.handle) == (2, "new")


def test_a_newer_attempt_is_left_alone(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    run, claim, _ = lost_run(launcher)
    monkeypatch.setattr(reconciler, "_take_last_events", lambda _: relaunched(run, claim))
    with monkeypatch.context() as patch:
        for name in ("give_up", "why_not_again"):
            patch.setattr(attempts, name, lambda **_: pytest.fail("it decides about a newer attempt"))
        reconciler.reconcile()
    run.refresh_from_db()
    assert (run.state, run.epoch) == ("starting", 2)
    assert launcher.calls == []
    assert attempts.claim_relaunch(run_id=run.pk, epoch=1, reason="late") is None
    assert not attempts.give_up(run_id=run.pk, epoch=1, to=RunState.FAILED, reason="late")


def test_repeatedly_lost_run_fails(launcher: FakeLauncher) -> None:
    run, _, _ = lost_run(launcher)
    for _ in range(attempts.MAX_ATTEMPTS):
        assert Run.objects.get(pk=run.pk).state != "failed"
        launcher.state = ProcessState.DEAD
        reconciler.reconcile()
    run.refresh_from_db()
    assert run.state == "failed"
    assert "5 attempts in a row did not get further" in run.reason
    assert launcher.calls == ["launch"] * (attempts.MAX_ATTEMPTS - 1)


def test_run_killed_for_memory_twice_without_progress_fails(launcher: FakeLauncher) -> None:
    run, _, _ = lost_run(launcher)
    launcher.out_of_memory = True
    reconciler.reconcile()
    Iteration.objects.create(
        run=run, index=0, policy_version=0, started_at=timezone.now(), finished_at=timezone.now()
    )
    for state in ("starting", "failed"):
        launcher.state = ProcessState.DEAD
        reconciler.reconcile()
        run.refresh_from_db()
        assert run.state == state
    assert "for its memory; 2 times at the same place" in run.reason
    assert launcher.calls == ["launch"] * 2


@pytest.mark.parametrize("result", ["iteration", "score"])
def test_attempts_before_the_last_progress_do_not_count(launcher: FakeLauncher, result: str) -> None:
    run, _, _ = lost_run(launcher)
    for number in range(2 * attempts.MAX_ATTEMPTS):
        launcher.state = ProcessState.DEAD
        reconciler.reconcile()
        now = timezone.now()
        if result == "score":
            Score.objects.create(run=run, source="1", phase="train", iteration=0, index=number, time=now)
        else:
            Iteration.objects.create(run=run, index=number, policy_version=0, started_at=now, finished_at=now)
    assert Run.objects.get(pk=run.pk).state == "starting"


def test_run_that_waits_for_capacity_never_expires(launcher: FakeLauncher, settings: Any) -> None:
    settings.TRAINYARD_RUNS_AT_ONCE = 1
    launched()
    for waits, state in ((True, "queued"), (False, "failed")):
        run = make_run()
        runs.start(run=run)
        if waits:
            assert attempts.claim_launch(run_id=run.pk) is None
        Run.objects.filter(pk=run.pk).update(state_changed_at=timezone.now() - timedelta(days=8))
        reconciler.reconcile()
        run.refresh_from_db()
        assert run.state == state


def test_a_silent_process_of_a_stopping_run_is_killed(launcher: FakeLauncher) -> None:
    run, _, _ = lost_run(launcher, ProcessState.ALIVE)
    runs.stop(run=Run.objects.get(pk=run.pk))
    reconciler.reconcile()
    assert launcher.calls == [], "it has time to end by itself"
    past = timezone.now() - reconciler.STOPPING_GRACE
    Run.objects.filter(pk=run.pk).update(state_changed_at=past)
    reconciler.reconcile()
    run.refresh_from_db()
    assert (launcher.calls, run.state) == (["kill"], "stopped")


def test_a_database_error_of_one_run_does_not_end_the_round(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, _), (second, _) = launched(), launched()
    seen = []

    def failing(run: Run) -> None:
        seen.append(run.pk)
        raise DatabaseError("deadlock detected")

    monkeypatch.setattr(reconciler, "_reconcile_run", failing)
    reconciler.reconcile()
    assert seen == [first.pk, second.pk]
