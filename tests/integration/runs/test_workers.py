"""Launcher and reconciler with real processes and a real database."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from engine.processes import process_start
from engine.storage.manifest import Manifest, Segment
from engine.storage.store import Store
from engine.types import RunState
from tests.builders.web.web_builders import make_run
from webapp.models import Alert, AuditEntry, Event, Run, RunAttempt
from webapp.runs.selectors.folders import run_folder
from webapp.runs.services import attempts, runs, states
from workers import launchers, lifecycle, reconciler
from workers.launchers.base import PROJECT, LaunchOrder, ProcessState
from workers.launchers.local import LocalLauncher

FAKE = (sys.executable, str(PROJECT / "tests" / "fakes" / "engine_process.py"))


@pytest.fixture
def started(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Launch the fake engine instead of the real one; kill its remaining processes at the end."""
    settings.TRAINYARD_HOME = tmp_path
    monkeypatch.setitem(launchers.LAUNCHERS, "local", LocalLauncher(FAKE))
    yield
    for file in tmp_path.glob("runs/*/engine.pid"):
        pid, start = _process(file.parent)
        if process_start(pid) == start:
            os.killpg(pid, signal.SIGKILL)


def queued(*words: str) -> Run:
    run = make_run(name=" ".join(words))
    runs.start(run=run)
    return run


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 400
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def attempt(run: Run) -> RunAttempt:
    return RunAttempt.objects.filter(run=run).latest("epoch")


def process(run: Run) -> ProcessState:
    newest = attempt(run)
    return launchers.LAUNCHERS["local"].poll(host=newest.host, handle=newest.handle).state


def state_of(run: Run) -> str:
    run.refresh_from_db()
    return run.state


def wait_for_end(run: Run) -> None:
    wait_for(lambda: process(run) is ProcessState.DEAD)


def performed(*words: str) -> Run:
    """Launch a run and wait until its first engine is ready."""
    run = queued(*words)
    lifecycle.launch(run_id=run.pk)
    wait_for((run_folder(run.pk) / "ready").exists)
    return run


def kill(run: Run) -> None:
    os.kill(int(attempt(run).handle.partition(":")[0]), signal.SIGKILL)
    wait_for_end(run)


def _process(folder: Path) -> tuple[int, int]:
    record = json.loads((folder / "engine.pid").read_text())
    return record["pid"], record["started"]


@pytest.mark.django_db
def test_run_is_launched_once_and_its_last_events_are_ingested(started: None) -> None:
    run = queued("finish")
    assert lifecycle.launch(run_id=run.pk)
    assert not lifecycle.launch(run_id=run.pk)
    assert state_of(run) == "starting"
    folder = run_folder(run.pk)
    assert (folder / "launch.json").stat().st_mode & 0o777 == 0o600
    wait_for_end(run)
    reconciler.reconcile()
    assert state_of(run) == "succeeded"
    assert Event.objects.filter(run=run).count() == 2
    assert RunAttempt.objects.filter(run=run).count() == 1


@pytest.mark.django_db
def test_last_events_of_a_lost_node_are_ingested_from_its_store(started: None, tmp_path: Path) -> None:
    run = queued("finish")
    lifecycle.launch(run_id=run.pk)
    wait_for_end(run)
    spool = run_folder(run.pk) / "events.jsonl"
    store, content = Store(f"file://{tmp_path}/store", str(run.pk)), spool.read_bytes()
    store.write("spool/all", content)
    digest = hashlib.sha256(content).hexdigest()
    Manifest(epoch=1, spool=(Segment(start=0, end=len(content), object="spool/all", sha256=digest),)).write(
        store
    )
    spool.unlink()
    config = {**run.config, "storage": {"url": f"file://{tmp_path}/store"}}
    Run.objects.filter(pk=run.pk).update(config=config)
    reconciler.reconcile()
    assert state_of(run) == "succeeded"
    assert Event.objects.filter(run=run).count() == 2


@pytest.mark.django_db
def test_a_killed_engine_is_replaced_under_a_higher_epoch(started: None) -> None:
    run = performed("sleep", "finish")
    reconciler.reconcile()
    assert RunAttempt.objects.filter(run=run).count() == 1
    kill(run)
    reconciler.reconcile()
    run.refresh_from_db()
    assert run.epoch == 2
    assert Alert.objects.get(run=run).code == "run.relaunched"
    assert AuditEntry.objects.filter(run=run, action="run.relaunch").exists()
    wait_for_end(run)
    reconciler.reconcile()
    assert state_of(run) == "succeeded"


@pytest.mark.django_db
def test_overlapping_reconcilers_replace_a_lost_attempt_once(
    started: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = performed("sleep", "sleep")
    kill(run)
    take = reconciler._take_last_events

    def overtaken(late: Run) -> None:
        monkeypatch.setattr(reconciler, "_take_last_events", take)
        reconciler.reconcile()
        take(late)

    monkeypatch.setattr(reconciler, "_take_last_events", overtaken)
    reconciler.reconcile()
    assert list(RunAttempt.objects.filter(run=run, ended_at=None).values_list("epoch", flat=True)) == [2]
    assert not attempts.give_up(run_id=run.pk, epoch=1, to=RunState.FAILED, reason="attempt 1 fell silent")
    assert state_of(run) in ("starting", "running"), "the second attempt may have written its first event"


@pytest.mark.django_db
def test_run_that_always_crashes_fails_with_its_last_log_line(started: None) -> None:
    run = queued("crash")
    lifecycle.launch(run_id=run.pk)
    for _ in range(attempts.MAX_ATTEMPTS):
        wait_for_end(run)
        reconciler.reconcile()
    assert state_of(run) == "failed"
    assert "the fake engine ends: crash" in run.reason_detail
    assert "5 attempts in a row did not get further" in run.reason
    assert RunAttempt.objects.filter(run=run).count() == attempts.MAX_ATTEMPTS
    assert Alert.objects.filter(run=run, code="run.failed").exists()


@pytest.mark.django_db
def test_stopping_kills_only_unresponsive_engines_and_stopped_runs_resume(started: None) -> None:
    for words, killed in ((("sleep", "finish"), False), (("stubborn",), True)):
        run = performed(*words)
        runs.stop(run=run)
        lifecycle.ask_to_stop(run_id=run.pk)
        if not killed:
            wait_for_end(run)
        reconciler.reconcile()
        if killed:
            assert state_of(run) == "stopping"
            past = timezone.now() - states.TIMEOUTS[RunState.STOPPING].after
            Run.objects.filter(pk=run.pk).update(state_changed_at=past)
            reconciler.reconcile()
        assert state_of(run) == "stopped"
        assert process(run) is ProcessState.DEAD
        assert run.reason == (states.TIMEOUTS[RunState.STOPPING].reason if killed else "stopped")
        if not killed:
            runs.resume(run=run)
            assert lifecycle.launch(run_id=run.pk)
            wait_for_end(run)
            reconciler.reconcile()
            assert state_of(run) == "succeeded"


@pytest.mark.django_db
def test_events_written_while_an_engine_is_killed_are_ingested(
    started: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(LocalLauncher):
        """Launcher whose engine writes another event while it is killed."""

        def kill(self, *, host: str, handle: str) -> None:
            line = {"type": "run_progress", "message": "m", "done": 1, "total": 2}
            line |= {"seq": 2, "epoch": 1, "time": time.time()}
            with (run_folder(run.pk) / "events.jsonl").open("a") as spool:
                spool.write(json.dumps(line) + "\n")
            super().kill(host=host, handle=handle)

    monkeypatch.setitem(launchers.LAUNCHERS, "local", Interrupted(FAKE))
    run = performed("stubborn")
    runs.stop(run=run)
    past = timezone.now() - states.TIMEOUTS[RunState.STOPPING].after
    Run.objects.filter(pk=run.pk).update(state_changed_at=past)
    reconciler.reconcile()
    assert process(run) is ProcessState.DEAD
    assert list(Event.objects.filter(run=run).values_list("seq", flat=True)) == [1, 2]


@pytest.mark.django_db
def test_an_attempt_on_a_lost_machine_is_fenced_and_replaced(started: None) -> None:
    run = queued("sleep", "finish")
    claim = attempts.claim_launch(run_id=run.pk)
    assert claim is not None
    attempts.record_process(run_id=run.pk, epoch=1, host="elsewhere", handle="1:1", run_dir="/x")
    assert Run.objects.get(pk=run.pk).heartbeat_at is not None, "the worker's own sign of life"
    long_ago = timezone.now() - timedelta(seconds=91)
    Run.objects.filter(pk=run.pk).update(state_changed_at=long_ago, heartbeat_at=timezone.now())
    reconciler.reconcile()
    run.refresh_from_db()
    assert run.epoch == 1
    Run.objects.filter(pk=run.pk).update(state_changed_at=long_ago, heartbeat_at=long_ago)
    reconciler.reconcile()
    run.refresh_from_db()
    assert run.epoch == 2


@pytest.mark.django_db
def test_a_process_that_cannot_be_started_fails_the_run(started: None, monkeypatch: Any) -> None:
    monkeypatch.setitem(launchers.LAUNCHERS, "local", LocalLauncher(("/nonexistent/python",)))
    run = queued("finish")
    lifecycle.launch(run_id=run.pk)
    assert state_of(run) == "failed"
    assert "could not be started" in run.reason


def test_a_reused_pid_is_never_signalled(tmp_path: Path) -> None:
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    )
    launcher = LocalLauncher(FAKE)
    host = os.uname().nodename
    try:
        forged = f"{bystander.pid}:{int(process_start(bystander.pid) or 0) - 1}"
        assert launcher.poll(host=host, handle=forged).state is ProcessState.DEAD
        launcher.ask_to_stop(host=host, handle=forged)
        launcher.kill(host=host, handle=forged)
        launcher.kill(host=host, handle="")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_an_engine_survives_the_death_of_its_launcher(tmp_path: Path) -> None:
    """``kill -9`` of the worker's whole process group leaves the engine alone."""
    (tmp_path / "config.json").write_text('{"name": "sleep"}')
    (tmp_path / "launch.json").write_text('{"epoch": 1}')
    script = (
        "import sys, time; from pathlib import Path; from workers.launchers.local import LocalLauncher;"
        "from workers.launchers.base import LaunchOrder;"
        "order = LaunchOrder(run_dir=Path(sys.argv[1]), name='one');"
        f"LocalLauncher({FAKE!r}).launch(order, lambda host, handle: print(handle, flush=True));"
        "time.sleep(60)"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdout=subprocess.PIPE, text=True, cwd=PROJECT, start_new_session=True,
    )  # fmt: skip
    assert worker.stdout is not None
    handle = worker.stdout.readline().strip()
    launcher = LocalLauncher(FAKE)
    host = os.uname().nodename
    try:
        wait_for((tmp_path / "ready").exists)
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        assert launcher.poll(host=host, handle=handle).state is ProcessState.ALIVE
    finally:
        worker.stdout.close()
        launcher.kill(host=host, handle=handle)
    wait_for(lambda: launcher.poll(host=host, handle=handle).state is ProcessState.DEAD)


def test_killed_engine_logs_the_stacks_of_its_threads(tmp_path: Path) -> None:
    log, host = tmp_path / "engine.log", os.uname().nodename
    command = (
        *(sys.executable, "-m", "engine.run", "--recipe", "frozenlake-evaluate", "--home", str(tmp_path)),
        *("--set", "policy.checkpoint=fresh:frozenlake"),
    )
    with log.open("wb") as stderr, subprocess.Popen(command, stderr=stderr, start_new_session=True) as engine:
        try:
            wait_for(lambda: any(tmp_path.glob("runs/*/events.jsonl")))
            handle = f"{engine.pid}:{process_start(engine.pid)}"
            LocalLauncher().kill(host=host, handle=handle)
        finally:
            engine.kill()
    assert engine.returncode == -signal.SIGKILL
    stacks = log.read_text()
    assert "most recent call first" in stacks
    assert "engine/run.py" in stacks


def test_engine_environment_has_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_SECRET_KEY", "secret")
    script = tmp_path / "script.py"
    script.write_text("import os; print(sorted(os.environ), flush=True)")
    launcher = LocalLauncher((sys.executable, str(script)))
    handles: list[str] = []
    launcher.launch(LaunchOrder(run_dir=tmp_path, name="one"), lambda _host, handle: handles.append(handle))
    (handle,) = handles
    wait_for(lambda: launcher.poll(host=os.uname().nodename, handle=handle).state is ProcessState.DEAD)
    names = (tmp_path / "engine.log").read_text()
    assert "PATH" in names
    assert not any(name in names for name in ("TRAINYARD_SECRET_KEY", "DATABASE_URL", "REDIS_URL"))
