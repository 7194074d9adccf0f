"""HTTP API: permissions, status codes of the ingest protocol, and reads of runs and trajectories."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from engine.config.run import TrainRun, load_run_config
from engine.types import RunState
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.web_builders import bearer, hand_over, launched, make_user, post
from webapp.accounts.services import accounts
from webapp.core.permissions import Role
from webapp.models import ApiToken, AuditEntry, Dataset, Run, Task, TaskAnswer, Trajectory
from webapp.runs.services import attempts
from workers import rundir

pytestmark = pytest.mark.django_db
API = "/api/v1"


def client_of(role: Role | None) -> Client:
    """Return a client with a personal API token of a user with this role."""
    user = make_user(f"user-{role}", role or Role.VIEWER)
    token = accounts.create_token(user=user, name="t", scope=role or Role.VIEWER)
    if role is None:
        user.groups.clear()
    return bearer(token)


def send(client: Client, path: str, body: Any = None) -> Any:
    return client.post(API + path, json.dumps(body or {}), content_type="application/json")


def test_a_session_needs_a_csrf_token_to_write() -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(make_user("ada", Role.OPERATOR))
    assert client.get(API + "/runs").status_code == 200
    assert send(client, "/runs", {"recipe": "quickstart"}).status_code == 403
    assert not Run.objects.exists()


def test_revoked_tokens_and_deactivated_users_are_rejected() -> None:
    client = client_of(Role.OPERATOR)
    assert client.get(API + "/runs").status_code == 200
    token = ApiToken.objects.get()
    accounts.set_active(user=token.user, active=False)
    assert client.get(API + "/runs").status_code == 401
    accounts.set_active(user=token.user, active=True)
    accounts.revoke_token(token=token)
    assert client.get(API + "/runs").status_code == 401


def test_only_operators_see_task_answers() -> None:
    dataset = Dataset.objects.create(name="d")
    task = Task.objects.create(dataset=dataset, key="k1", instance_id="i", split="train")
    TaskAnswer.objects.create(task=task, gold_patch="the gold")
    visible = client_of(Role.OPERATOR).get(f"{API}/datasets/d/tasks/k1").json()
    assert visible["answer"]["gold_patch"] == "the gold"
    hidden = client_of(Role.VIEWER).get(f"{API}/datasets/d/tasks/k1")
    assert hidden.json()["answer"] is None
    assert "the gold" not in hidden.content.decode()


def test_run_creation_reports_errors_and_is_audited() -> None:
    client = client_of(Role.OPERATOR)
    answer = send(client, "/runs", {"recipe": "quickstart", "overrides": {"trainer.iterationz": 3}})
    assert answer.status_code == 422
    assert "trainer.iterationz" in answer.json()["detail"]
    answer = send(client, "/runs", {"recipe": "quickstart", "overrides": {"trainer.iterations": 3}})
    assert answer.json()["config"]["trainer"]["iterations"] == 3
    entry = AuditEntry.objects.get(action="run.create")
    assert entry.actor is not None
    assert entry.actor.username == "user-operator"
    assert entry.changes["overrides"] == {"trainer.iterations": 3}
    answer = send(client, f"/runs/{answer.json()['id']}/start")
    assert answer.status_code == 422
    assert "dataset 'quickstart' is not here" in answer.json()["detail"]


def test_starting_a_launched_run_is_a_conflict() -> None:
    run, _ = launched()
    answer = send(client_of(Role.ADMIN), f"/runs/{run.pk}/start")
    assert (answer.status_code, answer.json()["state"]) == (409, "starting")


def engine_post(claim: attempts.Claim, body: bytes, **headers: str) -> Any:
    return Client().post(
        f"{API}/runs/{claim.run_id}/events", body, content_type="application/x-ndjson",
        headers={"Authorization": f"Bearer {claim.token}"} | headers,
    )  # fmt: skip


def test_ingest_protocol_acknowledges_events_and_rejects_invalid_ones() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.trajectory(ref(0, "a", 0))
    answer = engine_post(claim, stream.body(0, 3))
    assert (answer.status_code, answer.json()) == (200, {"acked_seq": 3, "accepted": 3, "duplicates": 0})
    answer = engine_post(claim, stream.body(1, 4))
    assert answer.json() == {"acked_seq": 4, "accepted": 1, "duplicates": 2}
    answer = engine_post(claim, stream.body(0, 1) + b"{}\n")
    assert (answer.status_code, answer.json()["line"]) == (422, 2)
    gap = Stream(first_seq=9)
    gap.started()
    answer = engine_post(claim, gap.body())
    assert (answer.status_code, answer.json()["expected_seq"]) == (409, 5)
    wrong = attempts.Claim(run_id=run.pk, epoch=1, token="x", config={})
    assert engine_post(wrong, stream.body()).status_code == 401
    admin = make_user("root", Role.ADMIN)
    token = accounts.create_token(user=admin, name="t")
    wrong = attempts.Claim(run_id=run.pk, epoch=1, token=token, config={})
    assert engine_post(wrong, stream.body()).status_code == 401
    attempts.claim_relaunch(run_id=run.pk, epoch=1, reason="test")
    answer = engine_post(claim, stream.body(4))
    assert (answer.status_code, answer.json()["epoch"]) == (409, 2)


def test_too_large_event_batch_is_refused(settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    _, claim = launched()
    assert engine_post(claim, b" " * 2000).status_code == 413


def test_heartbeats_return_the_desired_state() -> None:
    run, claim = launched()
    path = f"{API}/runs/{run.pk}/heartbeat"
    client = bearer(claim.token)
    beat = {"epoch": 1, "pid": 1, "host": "h", "seq": 0}
    answer = client.post(path, beat, content_type="application/json")
    assert answer.json() == {"desired": "run", "epoch": 1, "acked_seq": 0}
    operator = client_of(Role.OPERATOR)
    hand_over("user-operator")
    assert send(operator, f"/runs/{run.pk}/pause").json()["desired"] == "pause"
    assert client.post(path, beat, content_type="application/json").json()["desired"] == "pause"
    assert send(operator, f"/runs/{run.pk}/resume").json()["desired"] == "run"
    assert send(operator, f"/runs/{run.pk}/stop").json()["state"] == "stopping"
    assert client.post(path, beat, content_type="application/json").json()["desired"] == "stop"
    attempts.give_up(run_id=run.pk, epoch=claim.epoch, to=RunState.STOPPED, reason="test")
    answer = client.post(path, beat, content_type="application/json")
    assert (answer.status_code, answer.json()["epoch"]) == (409, 2)
    assert Client().post(path, beat, content_type="application/json").status_code == 401


def test_trajectories_are_paginated_and_readable_in_detail() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.iteration(0, tasks=("a", "b", "c"))
    post(claim, stream)
    client = client_of(Role.VIEWER)
    first = client.get(f"{API}/runs/{run.pk}/trajectories?size=4").json()
    second = client.get(f"{API}/runs/{run.pk}/trajectories?size=4&before={first['next_before']}").json()
    assert (first["total"], len(first["items"]), len(second["items"])) == (6, 4, 2)
    assert second["next_before"] is None
    ids = [item["id"] for item in first["items"] + second["items"]]
    assert sorted(ids) == sorted(Trajectory.objects.filter(run=run).values_list("pk", flat=True))
    trajectory = client.get(f"{API}/trajectories/{ids[0]}").json()
    assert [step["index"] for step in trajectory["steps"]] == [0, 1]
    assert (trajectory["prompt"], trajectory["prompt_hash"]) == ("deepswe_v1", "0123456789abcdef")
    assert [test["test_id"] for test in trajectory["tests"]] == ["t::a", "t::b"]
    tokens = client.get(f"{API}/trajectories/{ids[0]}/tokens?start=1").json()
    assert (tokens["length"], tokens["ids"]) == (3, [2, 3])
    points = client.get(f"{API}/runs/{run.pk}/iterations").json()
    assert [point["metrics"] for point in points] == [{"reward/mean": 0.5}]


def test_openapi_schema_is_served_without_a_docs_page() -> None:
    schema = Client().get(f"{API}/openapi.json").json()
    assert f"{API}/runs/{{run_id}}/events" in schema["paths"]
    assert Client().get(f"{API}/docs").status_code == 404


def test_operation_ids_are_unique_and_name_no_module() -> None:
    schema = Client().get(f"{API}/openapi.json").json()
    ids = [operation["operationId"] for path in schema["paths"].values() for operation in path.values()]
    assert len(set(ids)) == len(ids)
    assert {"list_runs", "get_trajectory", "post_events"} <= set(ids)
    assert not any("webapp" in name for name in ids)


def test_deeply_nested_json_body_is_refused() -> None:
    answer = client_of(Role.OPERATOR).post(f"{API}/runs", "[" * 50_000, content_type="application/json")
    assert answer.status_code == 400


def test_infinite_clip_high_survives_api_database_and_run_folder(settings: Any, tmp_path: Path) -> None:
    settings.TRAINYARD_HOME = tmp_path
    Dataset.objects.create(name="quickstart")
    client = client_of(Role.OPERATOR)
    for spelling in ('"inf"', '"Infinity"', "Infinity"):
        body = f'{{"recipe": "quickstart", "overrides": {{"algorithm.clip_high": {spelling}}}}}'
        answer = client.post(f"{API}/runs", body, content_type="application/json")
        assert answer.status_code == 201, answer.content
        run = Run.objects.get(pk=answer.json()["id"])
        assert run.config["algorithm"]["clip_high"] == "inf"
    shown = client.get(f"{API}/runs/{run.pk}")
    assert json.loads(shown.content, parse_constant=pytest.fail)["config"]["algorithm"]["clip_high"] == "inf"
    _, claim = launched(run)
    config = load_run_config(rundir.prepare(claim) / "config.json")
    assert isinstance(config, TrainRun)
    assert config.algorithm.clip_high == math.inf
