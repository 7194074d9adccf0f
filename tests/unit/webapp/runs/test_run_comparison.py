"""Run comparison: selection of runs, buckets of charts, and differing settings."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.builders.commands import run_command
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.web_builders import launched, make_run, make_user, post
from webapp.core.contexts.frame import trajectory_url
from webapp.core.permissions import Role
from webapp.models import Evaluation, Iteration, Run
from webapp.runs.contexts.config_view import compare_settings
from webapp.runs.selectors.series import Axis, bucketed, evaluated

pytestmark = pytest.mark.django_db
BEGAN = datetime(2026, 11, 24, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def viewer() -> Client:
    client = Client()
    client.force_login(make_user("eve", Role.VIEWER))
    return client


def trained(iterations: int, **overrides: object) -> Run:
    """Create a run whose iteration i took an hour, had reward i and trained on ten tokens."""
    run = make_run(**overrides)
    Run.objects.filter(pk=run.pk).update(running_at=BEGAN)
    Iteration.objects.bulk_create(
        Iteration(
            run=run, index=i, policy_version=i, started_at=BEGAN + i * HOUR,
            finished_at=BEGAN + (i + 1) * HOUR,
            metrics={"reward/mean": float(i), "tokens/trained": 10.0},
        )
        for i in range(iterations)
    )  # fmt: skip
    return run


def test_short_runs_are_drawn_point_by_point_on_every_axis() -> None:
    run, other = trained(3), trained(1)
    for axis, x in ((Axis.ITERATION, [0, 1, 2]), (Axis.TIME, [1, 2, 3]), (Axis.TOKENS, [10, 20, 30])):
        series = bucketed([run.pk, other.pk], ["reward/mean", "entropy/mean"], axis=axis, spread=True)
        assert series[run.pk].x == x
        assert series[run.pk].mean == {"reward/mean": [0, 1, 2], "entropy/mean": [None] * 3}
        assert series[run.pk].low["reward/mean"] == series[run.pk].high["reward/mean"] == [0, 1, 2]
        assert series[other.pk].x == x[:1]
    part = bucketed([run.pk], ["reward/mean"], axis=Axis.TOKENS, low=15, high=25)
    assert part[run.pk].mean == {"reward/mean": [1]}
    assert bucketed([make_run().pk], ["reward/mean"]).popitem()[1].x == []


def test_long_runs_are_drawn_in_stable_buckets() -> None:
    run = trained(40)
    series = bucketed([run.pk], ["reward/mean"], buckets=16, spread=True)[run.pk]
    assert series.x == [3, 7, 11, 15, 19, 23, 27, 31, 35, 39]
    assert series.mean["reward/mean"][:2] == [1.5, 5.5]
    assert (series.low["reward/mean"][1], series.high["reward/mean"][1]) == (4, 7)
    with_tail = bucketed([run.pk], ["reward/mean"], buckets=16, tail=3)[run.pk]
    assert with_tail.x == [*series.x[:9], 36, 37, 38, 39]
    Iteration.objects.filter(run=run, index=39).delete()
    before = bucketed([run.pk], ["reward/mean"], buckets=16, tail=3)[run.pk]
    assert before.x == [*series.x[:9], 36, 37, 38]
    assert before.mean["reward/mean"] == with_tail.mean["reward/mean"][:-1]
    part = bucketed([run.pk], ["reward/mean"], buckets=16, low=8, high=20)[run.pk]
    assert part.x == list(range(8, 21)), "a part is drawn in detail"


def test_evaluations_are_drawn_with_their_intervals() -> None:
    run = trained(3)
    for iteration in (0, 2):
        Evaluation.objects.create(
            run=run, iteration=iteration, name="heldout", policy_version=0, num_samples=4, num_tasks=2,
            num_solved=1, solve_rate=0.25, interval_low=0.1, interval_high=0.5,
            finished_at=BEGAN + iteration * HOUR,
        )  # fmt: skip
    for axis, x in ((Axis.ITERATION, [0, 2]), (Axis.TIME, [0, 2]), (Axis.TOKENS, [0, 20])):
        series = evaluated([run.pk], "heldout", axis=axis)[run.pk]
        assert (series.x, series.low["eval:heldout"]) == (x, [0.1, 0.1])


def test_differing_settings_are_listed() -> None:
    base = {"name": "a", "seed": 1, "trainer": {"rate": 0.1, "steps": 5}}
    other = {"name": "b", "seed": 1, "trainer": {"rate": 0.2}, "policy": {"type": "noop"}}
    rows, equal = compare_settings([base, other, base])
    assert [(row.key, row.values) for row in rows] == [
        ("trainer.rate", ("0.1", "0.2", "0.1")),
        ("trainer.steps", ("5", None, "5")),
        ("policy.type", (None, "noop", None)),
    ]
    assert equal == 1
    assert compare_settings([base, base]) == ((), 3)


def test_compared_runs_are_selected_by_the_address(viewer: Client) -> None:
    first, second = trained(2, seed=1), trained(3, seed=2)
    redirect = viewer.get(f"/runs/compare/?run={second.pk}&run={first.pk}&smooth=0.5")
    assert redirect["Location"] == f"/runs/compare/?runs={second.pk},{first.pk}&smooth=0.5"
    page = viewer.get(redirect["Location"])
    assert [compared.run for compared in page.context["compared"]] == [second, first]
    assert [row.key for row in page.context["differences"]] == ["seed"]
    assert "1 setting differs" in page.content.decode()
    odd = viewer.get(f"/runs/compare/?runs={first.pk},{first.pk},999,x'<b>")
    assert "Run not found: x&#x27;&lt;b&gt;, 999" in odd.content.decode()
    many = ",".join(str(trained(0).pk) for _ in range(12))
    assert "2 more in the address were ignored" in viewer.get(f"/runs/compare/?runs={many}").content.decode()
    assert "No runs to compare yet" in viewer.get("/runs/compare/").content.decode()


def test_chart_requests_are_bounded_and_their_query_count_is_constant(viewer: Client) -> None:
    runs = [trained(3), trained(3)]
    query = f"runs={runs[0].pk},{runs[1].pk}&keys=reward/mean,eval:heldout&x=tokens&from=5&to=25"
    answer = viewer.get(f"/runs/series/?{query}").json()["runs"][str(runs[1].pk)]
    assert answer["reward/mean"] == {"x": [10, 20], "y": [0, 1], "low": [0, 1], "high": [0, 1]}
    assert answer["eval:heldout"]["x"] == []
    keys = ",".join(f"k{i}" for i in range(200))
    named = (f"runs=1&keys={keys}", f"keys={keys}")
    for invalid_query in ("runs=x&keys=a", "runs=1&keys=a&x=y", "runs=1&keys=a&from=b", *named):
        assert viewer.get(f"/runs/series/?{invalid_query}").status_code == 400, invalid_query
    query_counts = []
    for run in (runs[0], trained(200)):
        with CaptureQueriesContext(connection) as captured:
            viewer.get(f"/runs/compare/?runs={run.pk}")
            viewer.get(f"/runs/series/?runs={run.pk}&keys=reward/mean")
        query_counts.append(len(captured))
    assert query_counts[0] == query_counts[1]


def test_tasks_by_runs_count_rollouts_and_open_the_first_of_each_kind(viewer: Client) -> None:
    runs = [launched(make_run()) for _ in range(2)]
    for (_, claim), rewards in zip(runs, ([1.0, 0.0, 0.0], [1.0, 1.0, 1.0]), strict=True):
        stream = Stream()
        stream.started()
        for index, reward in enumerate(rewards):
            stream.trajectory(ref(0, "differs", index), reward=reward)
        stream.trajectory(ref(0, "same", 0), reward=0.0)
        stream.trajectory(ref(0, "lost", 0), reward=None, termination="env_error")
        post(claim, stream)
    numbers = ",".join(str(run.pk) for run, _ in runs)
    document = viewer.get(f"/api/v1/runs/compare/tasks?runs={numbers}").json()
    assert document["tasks"] == [
        {"task": "differs", "solved": [1, 3], "graded": [3, 3]},
        {"task": "same", "solved": [0, 0], "graded": [1, 1]},
    ]
    assert json.loads(run_command("run", "tasks", *(str(run.pk) for run, _ in runs))) == document
    page = viewer.get(f"/runs/compare/tasks/?runs={numbers}").content.decode()
    first, second = (run.pk for run, _ in runs)
    assert f'href="{trajectory_url(first, "train", 0, "differs", 0)}"' in page
    assert f'href="{trajectory_url(first, "train", 0, "differs", 1)}"' in page
    assert f'href="{trajectory_url(first, "train", 0, "differs", 2)}"' not in page
    assert f'href="{trajectory_url(second, "train", 0, "differs", 0)}"' in page
    other = viewer.get(f"/api/v1/runs/compare/tasks?runs={numbers}&phase=eval:heldout").json()
    assert other["tasks"] == []
    assert viewer.get("/api/v1/runs/compare/tasks?runs=0,x").status_code == 422
    assert "No graded rollouts" in viewer.get("/runs/compare/tasks/").content.decode()
    assert viewer.get(f"/runs/compare/tasks/?runs={numbers}&page=99&phase=nonsense").status_code == 200


def test_tasks_by_runs_open_no_rollout_of_the_oracle_to_viewers(viewer: Client) -> None:
    run, claim = launched(make_run())
    stream = Stream()
    stream.started()
    stream.trajectory(ref(0, "a", 0))
    post(claim, stream)
    config = Run.objects.get(pk=run.pk).config | {"policy": {"type": "oracle"}}
    Run.objects.filter(pk=run.pk).update(config=config)
    page = viewer.get(f"/runs/compare/tasks/?runs={run.pk}").content.decode()
    assert "1/1" in page
    assert trajectory_url(run.pk, "train", 0, "a", 0) not in page
