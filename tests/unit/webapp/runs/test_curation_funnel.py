"""Page, API and terminal of a curation: its funnel while it runs, and after a kill."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.test import Client
from pydantic import ValidationError

from engine.events.curation import CurationFunnel
from tests.builders.commands import run_command
from tests.builders.web.event_builders import Stream
from tests.builders.web.html_regions import inner_html
from tests.builders.web.web_builders import launched, make_user, post, relaunched
from webapp.core.contexts.curation_funnel import build_funnel
from webapp.core.permissions import Role
from webapp.live.fragments import Subscription, snapshot
from webapp.models import Endpoint, Run
from webapp.runs.cli.describe import describe_funnel
from webapp.runs.services import runs

pytestmark = pytest.mark.django_db
STATE: dict[str, Any] = {
    "funnel": [
        {"stage": "commits", "reached": 40},
        {"stage": "has tests", "reached": 12, "lost": {"no_tests": 28}},
        {"stage": "tried", "reached": 5, "lost": {"waiting": 7}},
        {
            "stage": "wanted",
            "reached": 3,
            "lost": {"does_not_build": 2},
            "written": 0,
        },
    ],
    "examples": {
        "does_not_build": [{"origin": "r", "item": "a" * 40, "detail": "<script>alert(1)</script>"}]
    },
    "skipped": {"https://h.example/x": "has no commits"},
    "tasks": 3,
    "trial_seconds": 270.0,
    "disk_bytes": 6_000_000,
}


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_REPOSITORY_HOSTS", "h.example")


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(make_user("olga", Role.OPERATOR))
    return client


def curating() -> tuple[Run, Any, Stream]:
    run = runs.create(recipe="commits-dataset", overrides={"curation.repositories": ["https://h.example/r"]})
    run, claim = launched(run)
    stream = Stream()
    stream.started(total=0)
    stream.add("run_progress", message="reading the history of r", done=0, total=0)
    stream.add("run_progress", message="trying commits", done=5, total=12, funnel=STATE)
    post(claim, stream)
    run.refresh_from_db()
    return run, claim, stream


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).replace("\u202f", " ").replace("\xa0", " ").split())


def test_page_api_and_terminal_show_the_funnel_of_a_live_run(operator: Client) -> None:
    run, _, _ = curating()
    page = operator.get(f"/runs/{run.pk}/").content.decode()
    header, results = (text_of(inner_html(page, region)) for region in ("run-header", "run-results"))
    assert "Tasks 3 at most 220 wanted" in header
    assert "Time per task 1 min 30 s" in header
    assert "Disk per task 1.9 MB" in header
    assert "Progress 5 of 12" in header
    assert "Tried 5 12.5 % 7 not tried yet Wanted 3 7.5 % 2 no environment found r aaaaaaaaaaaa" in results
    assert "https://h.example/x: has no commits" in results
    assert "<script>alert(1)" not in page
    fragments = snapshot(Subscription("run", run.pk, (), (), Role.OPERATOR)).html
    assert text_of(fragments["run-results"]) == results
    answer = operator.get(f"/api/v1/runs/{run.pk}").json()
    assert answer["funnel"]["funnel"][3] == {
        "stage": "wanted", "reached": 3, "lost": {"does_not_build": 2}, "written": 0,
    }  # fmt: skip
    lines = describe_funnel(run)
    assert [line.split()[-1] for line in lines[:3]] == ["40", "28", "7"]
    assert lines[-1] == "not used: https://h.example/x: has no commits"
    assert lines[-2] == "per task: 1.5 min in trials, 1.9 MB of disk"


def test_a_later_attempt_keeps_the_numbers_until_it_has_its_own(operator: Client) -> None:
    run, claim, _ = curating()
    stream = Stream(epoch=2, first_seq=4)
    stream.started(total=0)
    stream.add("run_progress", message="reading the history of r", done=0, total=0)
    stream.add("run_progress", message="trying commits", done=6, total=12, funnel=STATE | {"tasks": 4})
    again = relaunched(run, claim)
    for end, expected in ((2, (5, 12, 3)), (3, (6, 12, 4))):
        post(again, stream, end - 2 if end == 2 else 2, end)
        run.refresh_from_db()
        assert (run.progress_done, run.progress_total, run.funnel["tasks"]) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"disk_bytes": 2**63},
        {"funnel": [{"stage": "x", "reached": -1}]},
        {"funnel": [{"stage": "x", "reached": 1}] * 33},
        {"examples": {"x": [{"origin": "r" * 301, "item": "c"}]}},
        {"trial_seconds": float("inf")},
    ],
)
def test_a_malformed_funnel_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CurationFunnel.model_validate(STATE | changes)


def test_funnels_of_earlier_versions_are_read() -> None:
    new = STATE["funnel"], STATE["examples"]
    text = json.dumps(new).replace('"reached"', '"commits"')
    renamed = text.replace('"origin"', '"repository"').replace('"item"', '"commit"')
    old = STATE | dict(zip(("funnel", "examples"), json.loads(renamed), strict=True))
    assert CurationFunnel.model_validate(old) == CurationFunnel.model_validate(STATE)
    assert build_funnel(old) == build_funnel(STATE) is not None
    hardening = {
        "funnel": [
            {"stage": "tasks", "commits": 2, "lost": {}},
            {"stage": "weak", "commits": 1, "lost": {"strong": 1}},
        ],
        "examples": {"strong": [{"task": "toy-1", "detail": ""}]},
    }
    table = build_funnel(hardening)
    assert table is not None
    assert (table.tasks, table.stages[1].losses[0].examples[0].item) == (1, "toy-1")


def test_command_and_api_curate_with_faults_by_a_model(operator: Client) -> None:
    Endpoint.objects.create(name="lab", address="http://127.0.0.1:9/v1")
    chosen = {
        "curation.writer.type": "endpoint", "curation.writer.endpoint": "lab", "curation.writer.model": "m",
        "curation.faults_per_task": 2,
    }  # fmt: skip
    settings = [part for name, value in chosen.items() for part in ("--set", f"{name}={value}")]
    where = ("--source", "https://h.example/r", "--output", "made", "--no-wait", "--json")
    started = json.loads(run_command("dataset", "curate", *where, *settings))
    curation = Run.objects.get(pk=started["id"]).config["curation"]
    assert (curation["writer"]["endpoint"], curation["faults_per_task"]) == ("lab", 2)
    assert curation["fault_kinds"] == []
    body = {"recipe": "quickstart-dataset", "overrides": chosen}
    refused = operator.post("/api/v1/runs", json.dumps(body), content_type="application/json")
    assert refused.status_code == 422
    assert "curation.fault_kinds" in refused.content.decode()
    body["overrides"] = chosen | {"curation.fault_kinds": []}
    answer = operator.post("/api/v1/runs", json.dumps(body), content_type="application/json")
    assert answer.status_code == 201
    assert answer.json()["config"]["curation"]["writer"] == curation["writer"]
