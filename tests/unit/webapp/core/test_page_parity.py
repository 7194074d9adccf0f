"""Parity of pages, API and commands: alerts, text search, experiments, run comparison."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.page_builders import Yard, make_yard
from tests.builders.web.web_builders import hand_over, make_run, signed_in
from webapp.core.permissions import Role
from webapp.models import Alert, AuditEntry, Experiment, Trajectory
from webapp.rollouts.services import passages

pytestmark = pytest.mark.django_db


@pytest.fixture
def yard() -> Yard:
    return make_yard(iterations=2, group_size=2)


def test_alerts_are_listed_and_acknowledged(yard: Yard) -> None:
    alert = yard.run.alerts.get()
    listed = signed_in(Role.VIEWER).get(f"/api/v1/alerts?run={yard.run.pk}").json()
    assert (listed["total"], listed["items"][0]["message"]) == (1, alert.message)
    assert f"alert {alert.pk} · run {yard.run.pk} · " in run_command("alert", "list")
    earlier = Alert.objects.get(pk=alert.pk)
    earlier.pk, earlier.seq, earlier.time = None, 0, earlier.time - timedelta(hours=1)
    earlier.save()
    listed = signed_in(Role.VIEWER).get(f"/api/v1/alerts?run={yard.run.pk}").json()
    assert [(item["id"], item["num_alike"]) for item in listed["items"]] == [(alert.pk, 2)]
    assert f" · {alert.code} ×2 · {alert.message}" in run_command("alert", "list")
    assert run_command("alert", "list").endswith("1 of 1 kinds of open alerts\n")
    operator = signed_in(Role.OPERATOR)
    hand_over("user-operator")
    answer = operator.post(f"/api/v1/alerts/{alert.pk}/acknowledge").json()
    assert answer["acknowledged_at"] is not None
    operator.post(f"/api/v1/alerts/{alert.pk}/acknowledge")
    entry = AuditEntry.objects.get(action="alert.acknowledge", run=yard.run)
    assert (entry.actor and entry.actor.username, entry.changes["alert"]) == ("user-operator", alert.pk)
    assert operator.post("/api/v1/alerts/999999/acknowledge").status_code == 404
    alert.acknowledged_at = None
    alert.save()
    assert run_command("alert", "acknowledge", alert.pk) == "0 of 0 kinds of open alerts\n"
    with pytest.raises(CommandFailedError, match="there is no alert 999999"):
        run_command("alert", "acknowledge", 999999)


def test_thoughts_and_actions_are_searched(yard: Yard) -> None:
    while passages.index_pending():
        pass
    client = signed_in(Role.VIEWER)
    page = client.get("/trajectories/?q=line").context
    answer = client.get("/api/v1/trajectories?q=line").json()
    assert answer["total"] == page["total"] > 1
    assert [item["id"] for item in answer["items"]] == [row.trajectory.pk for row in page["rows"]]
    first = answer["items"][0]
    assert "line" in first["matches"][0]["text"]
    rest = client.get(f"/api/v1/trajectories?q=line&size=1&before={first['id']}").json()
    assert rest["items"][0]["id"] == answer["items"][1]["id"]
    assert client.get("/api/v1/trajectories?q=line&verdict=tampered").json()["total"] == 0
    ended = next(item for item in answer["items"] if item["matches"][0]["place"] == "thoughts")
    row = Trajectory.objects.get(pk=ended["id"])
    lines = run_command("search", "line", "--run", yard.run.pk).splitlines()
    place = f"/runs/{row.run_id}/{row.phase}/{row.iteration}/{row.task_key}/{row.index}/"
    assert any(line.startswith(f"{place}?from=") and "#step-" in line for line in lines)
    assert run_command("search", "line", "--place", "patches") == "0 of 0 trajectories\n"
    assert client.get("/api/v1/trajectories?q=line&place=patches").json()["total"] == 0
    detail = client.get("/api/v1/trajectories?q=line&place=x").json()["detail"]
    assert "'thoughts', 'actions'" in detail[0]["msg"]
    assert lines[-1].endswith(f"of {answer['total']} trajectories")


def test_invalid_search_queries_are_refused() -> None:
    client = signed_in(Role.VIEWER)
    for filters in ({"q": "a\x00b"}, {"task": "a\x00b"}, {"q": "x" * 201}):
        assert client.get("/api/v1/trajectories", filters).status_code == 422
    with pytest.raises(CommandFailedError, match="at most 200 characters"):
        run_command("search", "x" * 201)


def test_experiments_are_listed_created_and_filter_runs(yard: Yard) -> None:
    admin = signed_in(Role.ADMIN)
    created = admin.post("/api/v1/experiments", {"name": "sweep"}, "application/json")
    assert (created.status_code, created.json()["name"]) == (201, "sweep")
    assert admin.post("/api/v1/experiments", {"name": "sweep"}, "application/json").status_code == 422
    counts = {entry["name"]: entry["num_runs"] for entry in admin.get("/api/v1/experiments").json()}
    assert counts == {yard.experiment.name: 1, "sweep": 0}
    filtered = admin.get(f"/api/v1/runs?experiment={yard.experiment.pk}").json()
    assert [item["id"] for item in filtered["items"]] == [yard.run.pk]
    assert "other · 0 runs, 0 active · why\n" in run_command("experiment", "create", "other", "--goal", "why")
    assert Experiment.objects.filter(name="other").exists()
    make_run()
    assert run_command("run", "list", "--experiment", yard.experiment.name).endswith("1 of 1 runs\n")
    with pytest.raises(CommandFailedError, match="there is no experiment 'none'"):
        run_command("run", "list", "--experiment", "none")


def test_run_comparison_is_the_same_on_page_api_and_command(yard: Yard) -> None:
    other = make_run(**{"trainer.iterations": 7})
    client = signed_in(Role.VIEWER)
    runs = f"{yard.run.pk},{other.pk}"
    comparison = client.get(f"/api/v1/runs/compare?runs={runs}").json()
    assert comparison["runs"] == [yard.run.pk, other.pk]
    iterations = {row["key"]: row["values"] for row in comparison["differences"]}["trainer.iterations"]
    assert iterations[1] == "7"
    assert "reward/mean" in comparison["metrics"]
    page = client.get(f"/runs/series/?runs={runs}&keys=reward/mean").json()
    assert client.get(f"/api/v1/runs/series?runs={runs}&metrics=reward/mean").json() == page
    printed = json.loads(run_command("run", "compare", yard.run.pk, other.pk, "--metric", "reward/mean"))
    assert (printed["differences"], printed["series"]) == (comparison["differences"], page["runs"])
    for invalid in ("none", "999999", "", ",".join(map(str, range(1, 13)))):
        assert client.get(f"/api/v1/runs/compare?runs={invalid}").status_code == 422
    assert client.get(f"/api/v1/runs/series?runs={runs}&metrics=x&x=moon").status_code == 422
    with pytest.raises(CommandFailedError, match="expected 1 to 10 runs, not 'none'"):
        run_command("run", "compare", "none")
