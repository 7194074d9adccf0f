"""A FrozenLake run from the form to the pages: tasks made by the engine, shown like any others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from django.test import Client
from django.urls import reverse

from engine.config.run import parse_run_config
from engine.events.control import Control
from engine.events.spool import SpoolSink
from engine.orchestrator import execute
from engine.orchestrator.context import RunContext
from tests.builders.web_builders import launched, make_user, sign_in
from tests.unit.environments.lake_builders import SMALL
from webapp.models import Evaluation, Task, Trajectory
from webapp.permissions import Role
from webapp.services.dataset import datasets
from webapp.services.ingestion import ingest
from webapp.services.run import runs

pytestmark = pytest.mark.django_db


@pytest.fixture
def home(settings: Any, tmp_path: Path) -> Path:
    settings.TRAINYARD_HOME = tmp_path
    return tmp_path


def play(home: Path, config: dict[str, Any]) -> bytes:
    """Run the configuration in this process; its spool."""
    torch.set_num_threads(1)
    run_dir = home / "runs" / "1"
    run_dir.mkdir(parents=True)
    sink = SpoolSink(run_dir, epoch=1)
    run = RunContext(run_id="1", epoch=1, run_dir=run_dir, home=home, sink=sink, control=Control())
    assert execute(parse_run_config(config), run) == 0
    sink.close()
    return (run_dir / "events.jsonl").read_bytes()


def test_a_run_is_launched_without_a_dataset_and_its_pages_show_the_lake(
    home: Path, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    overrides = {**SMALL, "policy.checkpoint": "fresh:frozenlake", "trainer.iterations": 1}
    run, claim = launched(runs.create(recipe="frozenlake", overrides=overrides))
    sent: list[tuple[Any, ...]] = []
    monkeypatch.setattr("webapp.dispatch.send", lambda *arguments: sent.append(arguments))
    spool = play(home, run.config)
    with django_capture_on_commit_callbacks(execute=True):
        ingest.ingest(run_id=run.pk, token=claim.token, body=spool)
    name = run.config["dataset"]["name"]
    assert ("trainyard.sync_dataset", name) in sent
    datasets.sync(name=name)
    run.refresh_from_db()
    assert run.dataset is not None
    assert Task.objects.filter(dataset=run.dataset).count() == 9
    assert Evaluation.objects.filter(run=run, name="heldout").count() == 2
    trajectory = Trajectory.objects.filter(run=run, phase="train").select_related("task").first()
    assert trajectory is not None
    assert trajectory.task is not None
    assert trajectory.verdict in ("passed", "failed")

    make_user("viewer", Role.VIEWER)
    client = Client()
    assert sign_in(client, "viewer")
    place = [run.pk, trajectory.phase, trajectory.iteration, trajectory.task_key]
    page = client.get(reverse("trajectory-detail", args=[*place, trajectory.index])).content.decode()
    assert trajectory.detail in page
    assert trajectory.task.instance_id in page
    assert client.get(reverse("group-detail", args=place)).status_code == 200
    task = client.get(reverse("task-detail", args=[name, trajectory.task_key])).content.decode()
    assert trajectory.task.metadata["grid"].split("\n")[0] in task
    assert "Walk over the frozen lake" in task


def test_the_form_offers_the_environments_settings() -> None:
    make_user("op", Role.OPERATOR)
    client = Client()
    assert sign_in(client, "op")
    page = client.get(reverse("run-new"), {"recipe": "frozenlake"}).content.decode()
    assert "environment.slip_probability" in page
    assert "environment.warm_start_steps" in page
