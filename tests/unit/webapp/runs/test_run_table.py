"""Runs table: columns, groups, order, saved views; in pages, API and commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import parse_qsl

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from engine.errors import ConfigError
from tests.builders.commands import command_result, run_command
from tests.builders.web.web_builders import make_run, make_user, signed_in
from webapp.core.permissions import Role
from webapp.live.fragments import Subscription, snapshot
from webapp.models import AuditEntry, Evaluation, Iteration, Run, RunView
from webapp.runs.contexts.run_table import build_run_list
from webapp.runs.selectors.run_table import RunFilters, list_groups, list_runs
from webapp.runs.services import run_views

pytestmark = pytest.mark.django_db
RATE = "trainer.learning_rate"


def measured(rate: float, *, heldout: float | None = None, metrics: Mapping[str, float] = {}) -> Run:
    """Create a run with a learning rate, and optionally a held-out solve rate and metrics."""
    run, now = make_run(**{RATE: rate}), timezone.now()
    if heldout is not None:
        Evaluation.objects.create(
            run=run, iteration=1, name="heldout", policy_version=1, num_samples=8, num_tasks=8, num_solved=4,
            solve_rate=heldout, interval_low=0.0, interval_high=1.0, finished_at=now,
        )  # fmt: skip
    if metrics:
        Iteration.objects.create(
            run=run, index=0, policy_version=0, started_at=now, finished_at=now, metrics=dict(metrics)
        )
    return run


@pytest.fixture
def runs() -> list[Run]:
    """Return runs with three learning rates, the last one without a held-out rate."""
    return [
        measured(0.01, heldout=0.25, metrics={"entropy/mean": 0.5}),
        measured(0.002, heldout=0.75, metrics={"entropy/mean": 0.125}),
        measured(0.01, heldout=0.5),
        measured(1.0),
    ]


def order(**filters: str) -> list[int]:
    return [run.pk for run in list_runs(RunFilters(**filters), number=1).rows]  # type: ignore[arg-type]


def test_runs_are_grouped_by_a_setting_with_mean_heldout_rates(runs: list[Run]) -> None:
    first, better, second, without = (run.pk for run in runs)
    group = f"set:{RATE}"
    assert order(group=group, sort="id") == [better, first, second, without]
    # Sorted by the held-out rate, groups follow their means: 0.75, 0.375, unknown.
    assert order(group=group, sort="-heldout") == [better, second, first, without]
    groups = list_groups(RunFilters(group=group))
    assert {(group.value, group.num_runs, group.mean) for group in groups.values()} == {
        (0.01, 2, 0.375), (0.002, 1, 0.75), (1.0, 1, None),
    }  # fmt: skip
    page = signed_in(Role.VIEWER).get(f"/runs/?group={group}").content.decode().replace("\u202f", " ")
    assert "held-out mean <strong>37.5 %</strong>, 25.0 % – 50.0 %" in page
    for fixed in ("experiment", "recipe", "dataset", "model", "state"):
        assert sum(group.num_runs for group in list_groups(RunFilters(group=fixed)).values()) == 4


def test_settings_and_metrics_are_columns_and_sort(runs: list[Run]) -> None:
    first, better, second, without = (run.pk for run in runs)
    assert order(sort=f"set:{RATE}") == [better, second, first, without]
    assert order(sort="-metric:entropy/mean")[:2] == [first, better]
    client = signed_in(Role.VIEWER)
    sent = client.get(
        "/runs/", {"show": ["metric:entropy/mean", f"set:{RATE}", "state"], "sort": "id", "q": ""}
    )
    address = f"/runs/?sort=id&columns=state,set:{RATE},metric:entropy/mean"
    assert sent["Location"] == address
    page = client.get(address).content.decode()
    assert "0.125 nats" in page
    assert "0.002" in page
    # The settings that differ are offered, equal ones are not.
    assert f'value="set:{RATE}"' in page
    assert "set:trainer.minibatches" not in page
    params = tuple(parse_qsl(address.partition("?")[2]))
    live = snapshot(Subscription("runs", None, (), params, Role.VIEWER))
    assert "0.125 nats" in live.html["run-list"]


def test_table_takes_the_same_number_of_queries_for_more_runs(runs: list[Run]) -> None:
    params = {"group": f"set:{RATE}", "columns": f"state,heldout,trend,set:{RATE},metric:entropy/mean"}

    def count() -> int:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            build_run_list(params, user_id=None, can_operate=True)
        return len(queries)

    before = count()
    for rate in (0.5, 0.25):
        measured(rate, heldout=0.5, metrics={"entropy/mean": 1.0})
    assert count() == before <= 13


HOSTILE = (
    "sort=set:a__icontains", "sort=metric:x", "columns=,,,", "columns=set:" + "a" * 200,
    "group=set:a.b.c.0", "group=config", "columns=set:policy,set:0,metric:reward/mean'--", "sort=-",
    "columns=" + ",".join(f"set:a{n}" for n in range(100)), "show=%00", "group=set:policy&sort=-heldout",
)  # fmt: skip


def test_hostile_columns_and_groups_are_ignored(runs: list[Run]) -> None:
    client = signed_in(Role.VIEWER)
    for query in HOSTILE:
        assert client.get(f"/runs/?{query}", follow=True).status_code == 200, query
        assert client.get(f"/api/v1/runs?{query}").status_code == 200, query


def test_api_and_command_return_columns_and_groups(runs: list[Run]) -> None:
    first = runs[0].pk
    columns = f"state,heldout,set:{RATE},metric:entropy/mean"
    query = {"columns": columns, "group": f"set:{RATE}", "sort": "id"}
    answer = signed_in(Role.VIEWER).get("/api/v1/runs", query).json()
    assert answer["items"][1]["id"] == first
    assert answer["items"][1]["values"] == {
        "state": "draft", "heldout": [0.25, 0.0, 1.0], f"set:{RATE}": 0.01, "metric:entropy/mean": 0.5,
    }  # fmt: skip
    assert [group["mean"] for group in answer["groups"]] == [0.75, 0.375, None]
    options = ("--columns", columns, "--group-by", f"set:{RATE}", "--sort", "id")
    assert json.loads(run_command("run", "list", *options, "--json")) == answer
    text = run_command("run", "list", *options)
    assert f"set:{RATE} 0.01: 2 runs, mean held-out rate 37.5% (25.0% to 50.0%, 2 runs)" in text
    assert "there is no column 'moon'" in command_result("run", "list", "--columns", "moon").errors
    assert "cannot be grouped by 'moon'" in command_result("run", "list", "--group-by", "moon").errors


def test_a_saved_view_opens_the_table(runs: list[Run]) -> None:
    client, other = signed_in(Role.VIEWER), make_user("eve", Role.OPERATOR)
    form = {"name": " rates ", "query": "?group=recipe&sort=-heldout&page=7&next=//evil", "is_default": "1"}
    saved = client.post("/runs/views/save/", form)
    assert saved["Location"] == "/runs/?group=recipe&sort=-heldout"
    assert client.get("/runs/")["Location"] == "/runs/?group=recipe&sort=-heldout"
    assert client.get("/runs/?view=all").status_code == 200
    run_views.save_view(user=other, name="mine", query="state=failed")
    names = [view["name"] for view in client.get("/api/v1/run-views").json()]
    assert names == ["rates"]
    put = client.put(
        "/api/v1/run-views/second", {"query": "q=x", "is_default": True}, content_type="application/json"
    )
    assert put.json() == {"name": "second", "query": "q=x", "is_default": True}
    assert client.get("/runs/")["Location"] == "/runs/?q=x"
    assert "not allowed" in str(client.post("/runs/views/save/", form | {"name": "a/b"}, follow=True).content)
    removed = client.post("/runs/views/remove/", {"name": "second", "query": "?state=failed&q=x"})
    assert removed["Location"] == "/runs/?state=failed&q=x"
    assert client.get("/runs/").status_code == 200
    assert {"run_view.save", "run_view.remove"} <= set(AuditEntry.objects.values_list("action", flat=True))
    printed = json.loads(run_command("run", "view", "list", "eve", "--json"))
    assert printed == [{"name": "mine", "query": "state=failed", "is_default": False}]
    run_command("run", "view", "save", "eve", "mine", "kind=train", "--default")
    assert RunView.objects.get(user=other).query == "kind=train"
    run_command("run", "view", "remove", "eve", "mine")
    assert not RunView.objects.filter(user=other).exists()


def test_views_have_bounds(runs: list[Run]) -> None:
    person = make_user("ada", Role.VIEWER)
    for name, query in (("", "q=x"), ("n" * 101, "q=x"), ("long", "q=" + "x" * 2000)):
        with pytest.raises(ConfigError, match="characters are allowed"):
            run_views.save_view(user=person, name=name, query=query)
    for number in range(run_views.MAX_VIEWS):
        run_views.save_view(user=person, name=f"view {number}", query="")
    with pytest.raises(ConfigError, match="at most 50 views"):
        run_views.save_view(user=person, name="one more", query="")
    assert Client().get("/api/v1/run-views").status_code == 401
