"""Secrets in events, tool output and process output are redacted before users see them."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.test import Client

from engine import redaction
from engine.events.delivery.spool import read_lines
from engine.redaction import Redactor, add_secrets
from engine.types import RunState
from tests.builders.web.event_builders import Stream
from tests.builders.web.web_builders import launched, make_run, make_user, post
from webapp.core.permissions import Role
from webapp.datasets.services import datasets
from webapp.models import Run, Trajectory
from webapp.runs.kinds import TABS
from webapp.runs.services import attempts
from workers import lifecycle, rundir
from workers.launchers import LAUNCHERS
from workers.launchers.base import LaunchOrder, ProcessState, Recorder

pytestmark = pytest.mark.django_db
KNOWN = "planted-known-secret"
ADDRESS = "planted-in-an-address"
PLANTED = f"{KNOWN} postgresql://me:{ADDRESS}@db.example.org/x"


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_process", Redactor())
    add_secrets([KNOWN])


def everything_stored(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the whole database as JSON."""
    call_command("dumpdata")
    return capsys.readouterr().out


def pages(run: Run, *more: str) -> dict[str, str]:
    """Return the pages and API responses of a run that a viewer can open, and those at ``more`` addresses."""
    client = Client()
    client.force_login(make_user("ada", Role.VIEWER))
    addresses = ["/", "/runs/", f"/runs/{run.pk}/", *(f"/runs/{run.pk}/?tab={tab}" for tab in TABS)]
    addresses += [f"/api/v1/runs/{run.pk}", "/api/v1/runs", f"/api/v1/runs/{run.pk}/trajectories", *more]
    shown = {}
    for address in addresses:
        response = client.get(address)
        assert response.status_code == 200, address
        shown[address] = response.content.decode()
    return shown


def test_events_are_redacted_before_they_are_stored_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    run, claim = launched()
    planted = f"{PLANTED} {claim.token}"
    ref = {"iteration": 0, "phase": "train", "task_id": "t", "index": 0}
    stream = Stream(epoch=claim.epoch)
    stream.add("run_started", host="h", pid=1, total_iterations=1)
    stream.add("run_progress", message=planted, done=0, total=1)
    stream.add("trajectory_started", ref=ref)
    stream.add(
        "step_finished", ref=ref, index=0, thought=planted, response=planted, tool="execute_bash",
        arguments={"cmd": planted}, observation=planted, error=planted,
    )  # fmt: skip
    stream.add("alert", severity="error", code="x", message=planted)
    stream.add("run_finished", state="failed", reason=planted)
    post(claim, stream)
    run.refresh_from_db()
    assert run.state == "failed"
    assert "[redacted]" in run.reason
    rollout = Trajectory.objects.get(run=run)
    page, steps = f"/runs/{run.pk}/train/0/t/0/", f"/trajectories/{rollout.pk}/steps/0"
    parts = [f"{steps}/{part}/" for part in ("observation", "thought", "response")]
    shown = pages(run, page, f"/runs/{run.pk}/train/0/t/", f"/api/v1/trajectories/{rollout.pk}", *parts)
    for address in (f"/runs/{run.pk}/", f"/runs/{run.pk}/?tab=events", page, *parts):
        assert "[redacted]" in shown[address], address
    for text in (everything_stored(capsys), *shown.values()):
        for secret in (KNOWN, ADDRESS, claim.token):
            assert secret not in text


def test_reasons_recorded_by_the_server_are_redacted(
    capsys: pytest.CaptureFixture[str], settings: Any, tmp_path: Path
) -> None:
    settings.TRAINYARD_HOME = tmp_path
    run, claim = launched()
    folder = rundir.prepare(claim)
    (folder / "engine.log").write_text(f"Traceback …\nOSError: {PLANTED}\n")
    words = rundir.last_words(run.pk)
    assert words.startswith("OSError: [redacted] postgresql://me:")
    relaunched = attempts.claim_relaunch(run_id=run.pk, epoch=claim.epoch, reason="ended", detail=PLANTED)
    assert relaunched is not None
    assert attempts.give_up(
        run_id=run.pk, epoch=relaunched.epoch, to=RunState.FAILED, reason=PLANTED, detail=PLANTED
    )
    shown = pages(run)
    for address in (f"/runs/{run.pk}/", f"/api/v1/runs/{run.pk}"):
        assert "[redacted]" in shown[address], address
    for text in (everything_stored(capsys), *shown.values()):
        assert KNOWN not in text
        assert ADDRESS not in text


def test_engine_process_redacts_the_servers_secrets(
    settings: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.TRAINYARD_HOME = tmp_path
    run = make_run()
    # The engine refuses this path and names it. The server's own checks, which come first, are bypassed.
    config = run.config | {"policy": run.config["policy"] | {"checkpoint": f"/nowhere/{KNOWN}"}}
    run, claim = launched(run)
    folder = rundir.prepare(
        attempts.Claim(run_id=run.pk, epoch=claim.epoch, token=claim.token, config=config)
    )
    launch = json.loads((folder / "launch.json").read_text())
    (folder / "launch.json").write_text(json.dumps(launch | {"ingest_url": None}))
    launcher = LAUNCHERS["local"]
    handles: list[tuple[str, str]] = []
    launcher.launch(LaunchOrder(run_dir=folder, name="one"), lambda *place: handles.append(place))
    ((host, handle),) = handles
    deadline = time.monotonic() + 120
    while launcher.poll(host=host, handle=handle).state is ProcessState.ALIVE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (event,) = [json.loads(line.data) for line in read_lines(folder / "events.jsonl")]
    assert event["type"] == "run_finished"
    assert "'/nowhere/[redacted]' is not below a policy folder" in event["reason"]
    for name in ("events.jsonl", "engine.log", "failure.json"):
        assert KNOWN not in (folder / name).read_text()
    assert KNOWN not in everything_stored(capsys)


def test_tool_messages_in_dataset_provenance_are_redacted(
    settings: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.TRAINYARD_HOME = tmp_path
    folder = tmp_path / "datasets" / "d"
    folder.mkdir(parents=True)
    provenance = {"skipped": {"pip:evil==1.0": f"pip download failed: {PLANTED}"}}
    (folder / "dataset.json").write_text(json.dumps({"name": "d", "provenance": provenance}))
    for name in ("tasks.jsonl", "answers.jsonl"):
        (folder / name).write_text("")
    dataset = datasets.sync(name="d")
    assert dataset.provenance["skipped"]["pip:evil==1.0"].startswith("pip download failed: [redacted]")
    stored = everything_stored(capsys)
    assert KNOWN not in stored
    assert ADDRESS not in stored


def test_server_log_lines_are_redacted(caplog: pytest.LogCaptureFixture) -> None:
    handler = next(handler for handler in logging.getLogger().handlers if handler.formatter is not None
                   and type(handler.formatter).__name__ == "RedactingFormatter")  # fmt: skip
    try:
        raise OSError(PLANTED)
    except OSError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "said %s", (PLANTED,), sys.exc_info())
    line = handler.format(record)
    assert "OSError" in line
    assert KNOWN not in line
    assert ADDRESS not in line


def test_server_secrets_are_registered_for_redaction(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_process", Redactor())
    settings.SECRET_KEY = "the-key-of-this-server"
    settings.DATABASE_URL = "postgresql://me:the-database-password@db.example.org/x"
    settings.REDIS_URL = "redis://:the-redis-password@redis.example.org/0"
    monkeypatch.setenv("HF_TOKEN", "the-token-of-the-hub")
    apps.get_app_config("webapp").ready()
    text = "the-key-of-this-server the-database-password the-redis-password the-token-of-the-hub"
    assert redaction.redact(text) == " ".join(["[redacted]"] * 4)


def test_launch_failure_reason_is_redacted(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TRAINYARD_HOME = tmp_path
    run, claim = launched()

    def refuse(_order: LaunchOrder, _record: Recorder) -> None:
        raise OSError(PLANTED)

    monkeypatch.setattr(LAUNCHERS["local"], "launch", refuse)
    lifecycle.start(claim)
    run.refresh_from_db()
    assert run.state == "failed"
    assert "[redacted]" in run.reason
    assert KNOWN not in run.reason
