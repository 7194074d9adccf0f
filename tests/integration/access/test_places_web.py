"""Allowed paths, hosts and grants of runs, checked alike by the page, the API and the command."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import Client

from engine.config.access.places import Allowed
from engine.errors import ConfigError
from engine.types import RunState
from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.web_builders import launched, make_run, make_user
from webapp.core.permissions import Role
from webapp.endpoints.services import places
from webapp.models import Run
from webapp.runs.services import runs
from webapp.runs.services.states import move
from workers import rundir

pytestmark = pytest.mark.django_db
HOST = "tcp://docker.example.org:2376"
REFUSED = [
    ("quickstart-dataset", "curation.sources", ["/etc"], "is not below an import folder"),
    ("quickstart-dataset", "curation.sources", ["pip:evil @ https://evil.example.org/a"], "no exact version"),
    (
        "quickstart-dataset",
        "curation.sources",
        ["https://evil.example.org/a"],
        "not an allowed host of repositories",
    ),
    ("quickstart-evaluate", "policy.checkpoint", "/etc", "is not below a policy folder"),
    ("quickstart-evaluate", "sandbox.docker.host", HOST, "is not granted"),
    ("quickstart-evaluate", "sandbox.kubernetes.kubeconfig", "/root/.kube/config", "is not granted"),
]


@pytest.fixture
def home(settings: Any, tmp_path: Path) -> Path:
    settings.TRAINYARD_HOME = tmp_path
    (tmp_path / "imports").mkdir()
    return tmp_path


@pytest.fixture
def client(db: None) -> Client:
    client = Client()
    client.force_login(make_user("ada", Role.OPERATOR))
    return client


@pytest.mark.parametrize(("recipe", "setting", "value", "reason"), REFUSED)
def test_page_api_and_command_refuse_forbidden_places_with_the_reason(
    home: Path, client: Client, recipe: str, setting: str, value: Any, reason: str
) -> None:
    text = "\n".join(value) if isinstance(value, list) else value
    page = client.post("/runs/new/", {"recipe": recipe, setting: text, "then": "start"})
    assert page.status_code == 422
    assert reason in html.unescape(page.content.decode())
    body = {"recipe": recipe, "overrides": {setting: value}}
    answer = client.post("/api/v1/runs", body, content_type="application/json")
    assert answer.status_code == 422
    assert any(reason in problem["message"] for problem in answer.json()["problems"])
    with pytest.raises(CommandFailedError, match=reason):
        run_command("run", "launch", recipe, "--set", f"{setting}={json.dumps(value)}")
    assert not Run.objects.exists()


def test_clone_has_the_restrictions_of_a_new_run(home: Path) -> None:
    run = make_run()
    with pytest.raises(ConfigError, match="not granted"):
        runs.clone(run=run, overrides={"sandbox.docker.host": HOST})


def test_runs_with_revoked_grants_neither_start_nor_resume(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_GRANTED", json.dumps({"sandbox.docker.host": [HOST]}))
    draft = make_run(**{"sandbox.docker.host": HOST})
    stopped, _ = launched(make_run(**{"sandbox.docker.host": HOST}))
    assert move(run_id=stopped.pk, to=RunState.STOPPED)
    monkeypatch.delenv("TRAINYARD_GRANTED")
    with pytest.raises(ConfigError, match="not granted"):
        runs.start(run=draft)
    with pytest.raises(ConfigError, match="not granted"):
        runs.resume(run=stopped)


def test_paths_are_stored_resolved_and_the_engine_gets_the_allow_lists(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "imports" / "tree").mkdir()
    (home / "policies" / "mine").mkdir(parents=True)
    monkeypatch.setenv("TRAINYARD_REPOSITORY_HOSTS", "git.example.org, Git.Example.NET:8443")
    monkeypatch.setenv("TRAINYARD_HUB_MODELS", "Qwen/*, openai/gpt-oss-20b")
    monkeypatch.setenv("TRAINYARD_HUB_DATASETS", "acme/*+token")
    monkeypatch.setenv("TRAINYARD_IMAGE_REGISTRIES", "Docker.io, reg.test:5000")
    sources = ["tree", "https://git.example.org/a", "https://git.example.net:8443/a"]
    curated = runs.create(recipe="quickstart-dataset", overrides={"curation.sources": sources})
    assert curated.config["curation"]["sources"] == [str(home / "imports" / "tree"), *sources[1:]]
    run, claim = launched(make_run(**{"policy.checkpoint": "mine"}))
    assert run.config["policy"]["checkpoint"] == str(home / "policies" / "mine")
    launch = json.loads((rundir.prepare(claim) / "launch.json").read_text())
    assert Allowed.model_validate(launch["allowed"]) == places.allowed()
    assert launch["allowed"]["repository_hosts"] == ["git.example.org", "git.example.net:8443"]
    assert launch["allowed"]["hub_models"] == ["Qwen/*", "openai/gpt-oss-20b"]
    assert launch["allowed"]["hub_datasets"] == ["acme/*+token"]
    assert launch["allowed"]["image_registries"] == ["docker.io", "reg.test:5000"]
    published, _ = launched(make_run(**{"policy.checkpoint": "Qwen/Qwen3-8B"}))
    assert published.config["policy"]["checkpoint"] == "Qwen/Qwen3-8B"


@pytest.mark.parametrize("variable", ["TRAINYARD_GRANTED", "TRAINYARD_LIMITS"])
@pytest.mark.parametrize("text", ["{", "[]", '{"sandbox.docker.host": "tcp://a"}', '{"a": true}'])
def test_malformed_grants_are_refused(monkeypatch: pytest.MonkeyPatch, variable: str, text: str) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ImproperlyConfigured, match=variable):
        places.allowed()
