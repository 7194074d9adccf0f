"""Runs of external trainers: tokens, events, end."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.test import Client
from django.utils import timezone

from engine.config.recipes import resolve
from engine.errors import ConfigError
from engine.types import RunState
from tests.builders.web.event_builders import Stream
from tests.builders.web.web_builders import make_run
from webapp.ingestion.services import ingest
from webapp.ingestion.services.secrets import endpoints_of
from webapp.models import AuditEntry, Iteration, Run, Step, Trajectory
from webapp.runs.services import attempts, runs
from workers import lifecycle, reconciler

pytestmark = pytest.mark.django_db
README = Path(__file__).parents[3] / "webapp" / "README.md"


@pytest.fixture
def run(settings: Any, tmp_path: Path) -> Run:
    """Started run of an external trainer."""
    settings.TRAINYARD_HOME = tmp_path
    run = make_run(**{"launcher.backend": "external"})
    runs.start(run=run)
    assert lifecycle.launch(run_id=run.pk)
    run.refresh_from_db()
    return run


def served(request: httpx.Request) -> httpx.Response:
    """Forward a request to Django's test client."""
    credentials = {"Authorization": request.headers["Authorization"]}
    answer = Client(headers=credentials).post(
        request.url.path, request.content, content_type="application/x-ndjson"
    )
    return httpx.Response(answer.status_code, content=answer.content, request=request)


def age(run: Run, **since: float) -> None:
    past = timezone.now() - timedelta(**since)
    Run.objects.filter(pk=run.pk).update(heartbeat_at=past, state_changed_at=past)


def test_readme_example_reports_a_whole_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(served)))
    issued = asdict(attempts.issue_token(run=run))
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(re.sub(r"issued = {.*?}", f"issued = {issued!r}", example, count=1, flags=re.DOTALL), {})
    run.refresh_from_db()
    assert run.state == RunState.SUCCEEDED
    assert Iteration.objects.get(run=run).metrics == {"reward/mean": 1.0}
    trajectory = Trajectory.objects.get(run=run)
    assert (trajectory.reward, trajectory.num_steps) == (1.0, 1)
    assert Step.objects.get(trajectory=trajectory).tool == "execute_bash"


def test_a_new_token_replaces_the_last_and_reveals_no_endpoint(run: Run) -> None:
    first = attempts.issue_token(run=run).token
    second = attempts.issue_token(run=run).token
    with pytest.raises(ingest.BadTokenError):
        ingest.authenticate(run_id=run.pk, token=first)
    assert ingest.authenticate(run_id=run.pk, token=second).pk == run.pk
    assert endpoints_of(run_id=run.pk, token=second) == {}
    assert AuditEntry.objects.filter(run=run, action="run.token").count() == 2


def test_only_live_external_runs_have_tokens(run: Run) -> None:
    with pytest.raises(attempts.NoTokenError, match="launcher.backend=external"):
        attempts.issue_token(run=make_run())
    runs.stop(run=run)
    for minutes, state in ((4, RunState.STOPPING), (6, RunState.STOPPED)):
        age(run, minutes=minutes)
        reconciler.reconcile()
        run.refresh_from_db()
        assert run.state == state
    with pytest.raises(attempts.NoTokenError, match="is stopped"):
        attempts.issue_token(run=run)


def test_a_silent_external_run_fails_after_a_day_and_is_not_relaunched(run: Run) -> None:
    age(run, hours=23)
    reconciler.reconcile()
    run.refresh_from_db()
    assert run.state == RunState.STARTING
    age(run, hours=25)
    reconciler.reconcile()
    run.refresh_from_db()
    assert (run.state, run.reason) == (RunState.FAILED, "the program that runs it sent nothing for a day")


def test_a_restarted_program_gets_a_new_attempt_and_continues_the_numbers(run: Run) -> None:
    first = attempts.issue_token(run=run)
    started = Stream()
    started.started()
    ingest.ingest(run_id=run.pk, token=first.token, body=b"\n".join(started.lines))
    second = attempts.issue_token(run=run)
    assert (first.acked_seq, second.acked_seq) == (0, 1)
    assert (first.epoch, second.epoch) == (1, 2)
    again = Stream(epoch=2, first_seq=second.acked_seq + 1)
    again.started()
    with pytest.raises(ingest.StaleEpochError):
        ingest.ingest(run_id=run.pk, token=first.token, body=b"\n".join(again.lines))
    assert ingest.ingest(run_id=run.pk, token=second.token, body=b"\n".join(again.lines)).accepted == 1
    run.refresh_from_db()
    assert run.state == RunState.RUNNING


@pytest.mark.parametrize("recipe", ["quickstart-dataset", "validate-dataset", "import-dataset"])
def test_runs_that_change_datasets_are_not_external(recipe: str) -> None:
    with pytest.raises(ConfigError, match=r"launcher\.backend: .* change datasets"):
        resolve(recipe, {"launcher.backend": "external"})
