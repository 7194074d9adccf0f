"""Launcher and reconciler with jobs of a real Ray cluster and a real database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from engine.config.run import with_overrides
from engine.types import RunState
from tests.builders.ray_clusters import RayCluster
from tests.builders.web.web_builders import make_run
from tests.integration.runs.test_workers import attempt, wait_for
from webapp.models import Event, Run, RunAttempt
from webapp.runs.selectors.folders import run_folder
from webapp.runs.selectors.logs import log_tail
from webapp.runs.selectors.runs import condition_of
from webapp.runs.services import runs, states
from workers import lifecycle, reconciler
from workers.launchers import LAUNCHERS
from workers.launchers.base import PROJECT, ProcessState
from workers.launchers.ray.jobs import ClusterRefusedError, RayJobs

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(600)]
FAKE = PROJECT / "tests" / "fakes" / "engine_process.py"


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder, and the fake engine as the project on the nodes."""
    settings.TRAINYARD_HOME = tmp_path
    package = tmp_path / "project" / "engine"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "run.py").write_text(
        f"import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path({str(FAKE)!r}, run_name='__main__')\n"
    )
    granted = {
        "launcher.ray.project": [str(tmp_path / "project"), "/nowhere"],
        "launcher.ray.runtime_env": [{"working_dir": "https://127.0.0.1:9/absent.zip"}],
    }
    monkeypatch.setenv("TRAINYARD_GRANTED", json.dumps(granted))
    return tmp_path


def launched(home: Path, word: str, **settings: Any) -> Run:
    config = {"name": word, "launcher.backend": "ray", "launcher.ray.project": str(home / "project")}
    run = make_run(**(config | settings))
    runs.start(run=run)
    lifecycle.launch(run_id=run.pk)
    run.refresh_from_db()
    return run


def process(run: Run) -> ProcessState:
    newest = attempt(run)
    return LAUNCHERS["ray"].poll(host=newest.host, handle=newest.handle).state


def test_repeated_submissions_of_an_attempt_create_one_job(cluster: RayCluster, home: Path) -> None:
    run = launched(home, "sleep")
    newest = attempt(run)
    assert (newest.launcher, newest.host) == ("ray", cluster.address)
    assert newest.handle.endswith(f"-run-{run.pk}-attempt-1")
    jobs = RayJobs(cluster.address)
    jobs.submit({"submission_id": newest.handle, "entrypoint": "touch /nowhere/second"})
    wait_for((run_folder(run.pk) / "ready").exists)
    assert not lifecycle.launch(run_id=run.pk), "it is claimed"
    reconciler.reconcile()
    assert RunAttempt.objects.filter(run=run).count() == 1
    assert process(run) is ProcessState.ALIVE
    # A run that ignores the stop request is killed, and its spooled events are kept.
    runs.stop(run=run)
    lifecycle.ask_to_stop(run_id=run.pk)
    past = timezone.now() - states.TIMEOUTS[RunState.STOPPING].after
    Run.objects.filter(pk=run.pk).update(state_changed_at=past)
    reconciler.reconcile()
    run.refresh_from_db()
    assert run.state == "stopped"
    assert process(run) is ProcessState.DEAD
    assert Event.objects.filter(run=run).count() == 1


def test_last_events_and_log_of_a_finished_job_are_collected(cluster: RayCluster, home: Path) -> None:
    run = launched(home, "finish")
    wait_for(lambda: process(run) is ProcessState.DEAD)
    reconciler.reconcile()
    run.refresh_from_db()
    assert run.state == "succeeded"
    assert Event.objects.filter(run=run).count() == 2
    assert log_tail(run.pk).text == "the fake engine ends: finish\n"


def test_unstartable_job_reports_the_reason(cluster: RayCluster, home: Path) -> None:
    unfit = launched(home, "finish", **{"launcher.ray.project": "/nowhere"})
    broken = launched(
        home, "finish", **{"launcher.ray.runtime_env": {"working_dir": "https://127.0.0.1:9/absent.zip"}}
    )
    for run, words in ((unfit, "there is no /nowhere"), (broken, "absent.zip")):
        wait_for(lambda run=run: process(run) is ProcessState.DEAD)  # type: ignore[misc]
        newest = attempt(run)
        report = LAUNCHERS["ray"].poll(host=newest.host, handle=newest.handle)
        assert words in report.message, report.message
        assert words in reconciler._why(run, report)[0]


def test_too_small_or_unreachable_cluster_fails_the_run_at_once(
    cluster: RayCluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    big = launched(home, "finish", **{"launcher.ray.gpus": 8})
    assert (big.state, attempt(big).handle) == ("failed", "")
    assert "launcher.ray.gpus: asks 8 GPUs, the cluster has 0" in big.reason
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:9")
    unreachable = launched(home, "finish")
    assert "the Ray cluster at http://127.0.0.1:9 does not answer" in unreachable.reason
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS")
    assert "no Ray cluster is known" in launched(home, "finish").reason
    monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
    with pytest.raises(ClusterRefusedError, match="set RAY_AUTH_TOKEN of the workers"):
        RayJobs(cluster.address).cluster()


def test_replacement_attempt_waits_for_a_cluster_and_can_be_stopped(cluster: RayCluster, home: Path) -> None:
    run = launched(home, "crash")
    wait_for(lambda: process(run) is ProcessState.DEAD)
    larger = with_overrides(run.config, {"launcher.ray.gpus": 8})
    Run.objects.filter(pk=run.pk).update(config=larger)
    reconciler.reconcile()
    run.refresh_from_db()
    assert (run.state, run.epoch) == ("starting", 2)
    wait_for(lambda: process(run) is ProcessState.PENDING)
    reconciler.reconcile()
    assert "has not started the job yet" in condition_of(run)
    runs.stop(run=run)
    reconciler.reconcile()
    run.refresh_from_db()
    assert (run.state, run.reason, condition_of(run)) == ("stopped", "stopped", "")
