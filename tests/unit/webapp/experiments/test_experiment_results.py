"""Results of an experiment's arms over seeds, and the number of seeds that is proposed."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.web_builders import signed_in
from webapp.core.permissions import Role
from webapp.experiments.contexts.bands import band
from webapp.experiments.designs import make_design
from webapp.models import Evaluation, Experiment, Group, Iteration, Run
from webapp.runs.selectors.series import aligned
from webapp.runs.services import experiment_runs

pytestmark = pytest.mark.django_db


def experiment_of(*arms: str, seeds: int = 3) -> Experiment:
    experiment = Experiment.objects.create(name="ablation")
    design = make_design(
        recipe="frozenlake", base_run=None, arms=[(arm, []) for arm in arms], seeds=str(seeds)
    )
    experiment_runs.launch(experiment=experiment, design=design)
    return experiment


def finish(
    arm: str,
    seed: int,
    solved: Sequence[int],
    rewards: Sequence[float] = (0.0, 0.5),
    *,
    split: str = "heldout",
    task: str = "t",
) -> Run:
    """End a run whose last evaluation solved each task ``solved[i]`` times in ten."""
    run = Run.objects.get(arm=arm, config__seed=seed)
    now = timezone.now()
    Run.objects.filter(pk=run.pk).update(state="succeeded", current_iteration=len(rewards) - 1)
    Iteration.objects.bulk_create(
        Iteration(
            run=run, index=i, policy_version=i, started_at=now, finished_at=now,
            metrics={"reward/mean": reward},
        )
        for i, reward in enumerate(rewards)
    )  # fmt: skip
    if solved:
        rate = sum(solved) / (10 * len(solved))
        Evaluation.objects.create(
            run=run, iteration=2, name=split, policy_version=2, num_samples=10 * len(solved),
            num_tasks=len(solved), num_solved=sum(solved), solve_rate=rate, interval_low=0, interval_high=1,
            finished_at=now,
        )  # fmt: skip
        Group.objects.bulk_create(
            Group(
                run=run, iteration=2, phase=f"eval:{split}", task_key=f"{task}{i}", num_graded=10,
                num_solved=number, started_at=now,
            )
            for i, number in enumerate(solved)
        )  # fmt: skip
    return run


def test_arms_are_compared_over_seeds_and_tasks() -> None:
    experiment = experiment_of("base", "same", "better", "one", "none")
    for seed in range(3):
        finish("base", seed, [2 + seed] * 10)
        finish("same", seed, [2 + 2 * seed] * 5 + [2] * 5)
        finish("better", seed, [7 + seed] * 9 + [6])
    finish("one", 0, [9] * 10)
    client = signed_in(Role.VIEWER)
    answer = client.get(f"/api/v1/experiments/{experiment.pk}/results").json()
    base, same, better, one, none = answer["arms"]
    assert [arm["verdict"] for arm in answer["arms"]] == [
        "baseline", "the same change in all seeds: no interval", "higher", "one seed: no conclusion",
        "no finished seed shared with the baseline",
    ]  # fmt: skip
    assert base["values"] == {"0": 0.2, "1": 0.3, "2": 0.4}
    assert (base["difference"], none["mean"]) == (None, None)
    assert better["difference"] == pytest.approx(0.48)
    assert better["num_tasks"] == 10
    assert one["interval_low"] is None
    assert answer["metric"] == "held-out solve rate"
    page = client.get(f"/experiments/{experiment.pk}/")
    text = page.content.decode()
    assert "one seed: no conclusion" in text
    assert "not corrected for 2 comparisons" in text
    assert page.context["results"].bars[0] is None
    assert json.loads(run_command("experiment", "results", "ablation", "--json")) == answer
    assert "better: higher · 0.780 over 3 of 3 seeds · change +0.480" in run_command(
        "experiment", "results", "ablation"
    )


def test_seeds_that_agree_exactly_and_tasks_that_disagree_show_no_change() -> None:
    experiment = experiment_of("base", "equal", "torn")
    for seed in range(3):
        finish("base", seed, [5] * 4)
        finish("equal", seed, [6] * 4)
        finish("torn", seed, [10, 1, 6 + (seed == 2), 5])
    address = f"/api/v1/experiments/{experiment.pk}/results"
    _, equal, torn = signed_in(Role.VIEWER).get(address).json()["arms"]
    assert (equal["verdict"], equal["interval_low"]) == ("the same change in all seeds: no interval", None)
    assert torn["interval_low"] > 0 > torn["task_low"]
    assert torn["verdict"] == "indistinguishable"


def test_evaluations_of_other_splits_count_and_other_tasks_are_not_compared() -> None:
    experiment = experiment_of("base", "arm", "elsewhere", seeds=2)
    for seed in range(2):
        finish("base", seed, [2 + seed] * 4, split="test")
        finish("arm", seed, [5 + 2 * seed] * 4, split="test")
        finish("elsewhere", seed, [8 + 2 * seed] * 4, task="other")
    client = signed_in(Role.VIEWER)
    answer = client.get(f"/api/v1/experiments/{experiment.pk}/results").json()
    assert answer["metric"] == "held-out solve rate"
    _, arm, elsewhere = answer["arms"]
    assert arm["difference"] == pytest.approx(0.35)
    assert (elsewhere["verdict"], elsewhere["num_tasks"]) == ("different tasks: no conclusion", 0)
    page = client.get(f"/experiments/{experiment.pk}/")
    assert page.context["charts"]["columns"]["heldout/1"] == [None, None, pytest.approx(0.6)]
    assert {row.last.name for row in page.context["heldout"]} == {"test", "heldout"}


def test_only_tasks_that_all_evaluations_graded_are_compared() -> None:
    experiment = experiment_of("base", "arm", seeds=2)
    for seed in range(2):
        finish("base", seed, [2, 4 + seed])
        finish("arm", seed, [3, 4 + 3 * seed, 10, 10])
    answer = signed_in(Role.VIEWER).get(f"/api/v1/experiments/{experiment.pk}/results").json()
    arm = answer["arms"][1]
    assert (arm["difference"], arm["num_tasks"]) == (pytest.approx(0.1), 2)
    assert arm["values"]["0"] == pytest.approx(0.675), "results of a seed are over all its tasks"


def test_rewards_count_where_no_run_was_evaluated_and_unfinished_runs_do_not() -> None:
    experiment = experiment_of("base", "arm", seeds=2)
    address = f"/api/v1/experiments/{experiment.pk}/results"
    assert signed_in(Role.VIEWER).get(address).json() is None
    assert run_command("experiment", "results", "ablation").startswith("no run of an arm has succeeded")
    finish("base", 0, [], [0.1, 0.2])
    finish("arm", 0, [], [0.5, 0.6])
    lost = finish("arm", 1, [], [0.9, 0.9])
    Run.objects.filter(pk=lost.pk).update(state="failed")
    answer = signed_in(Role.VIEWER).get(address).json()
    assert answer["metric"] == "mean reward of the last iterations"
    assert answer["arms"][1]["values"] == {"0": pytest.approx(0.55)}
    assert (answer["deviation"], answer["gain"]) == (None, None)


def test_bands_reach_from_the_lowest_to_the_highest_seed_until_the_shortest_run_ends() -> None:
    experiment = experiment_of("base", "arm", seeds=2)
    finish("base", 0, [5], [0.0, 0.2, 0.4])
    finish("base", 1, [7], [0.2, 0.4])
    page = signed_in(Role.VIEWER).get(f"/experiments/{experiment.pk}/")
    charts = page.context["charts"]
    assert [spec["id"] for spec in charts["specs"]] == ["reward", "heldout"]
    assert charts["x"] == [0, 1, 2]
    assert charts["columns"]["reward/0"] == [pytest.approx(0.1), pytest.approx(0.3), None]
    assert (charts["low"]["reward/0"][0], charts["high"]["reward/0"][0]) == (0, 0.2)
    assert charts["columns"]["heldout/0"] == [None, None, pytest.approx(0.6)]
    assert "reward/1" not in charts["columns"]
    assert band([{}, {}]) == {}


def test_buckets_of_long_runs_are_the_same_for_all_runs() -> None:
    experiment_of("base", seeds=2)
    first = finish("base", 0, [], [float(i) for i in range(10)])
    second = finish("base", 1, [], [float(i) for i in range(6)])
    points = aligned([first.pk, second.pk], "reward/mean", buckets=3)
    assert points == {first.pk: {3: 1.5, 7: 5.5, 9: 8.5}, second.pk: {3: 1.5}}
    Iteration.objects.filter(run=second, index=5).update(index=2**31 - 1)
    assert aligned([first.pk, second.pk], "reward/mean", buckets=3) == points


def test_query_count_of_the_page_is_constant() -> None:
    experiment = experiment_of("base", "arm", seeds=4)
    client = signed_in(Role.VIEWER)
    counts = []
    for seed in range(4):
        finish("base", seed, [5, 6])
        finish("arm", seed, [6, 8])
        with CaptureQueriesContext(connection) as captured:
            assert client.get(f"/experiments/{experiment.pk}/").status_code == 200
        counts.append(len(captured))
    assert counts[1] == counts[3]


def test_seeds_are_proposed_from_the_spread_of_finished_runs() -> None:
    experiment = experiment_of("base", "arm")
    for seed in range(3):
        finish("base", seed, [4 + seed] * 4)
        finish("arm", seed, [5 + seed] * 4)
    operator = signed_in(Role.OPERATOR)
    query = f"/api/v1/experiments/power?experiment={experiment.pk}&gain=0.1&seeds=3"
    answer = operator.get(query).json()
    assert answer["deviation"] == pytest.approx(0.1)
    assert answer["seeds_needed"] == 18
    assert answer["smallest_gain"] == pytest.approx(0.438, abs=1e-3)
    form = {
        "then": "power", "seeds": "3", "gain": "0.1", "spread_of": str(experiment.pk), "recipe": "frozenlake",
    }  # fmt: skip
    page = operator.post("/experiments/new/", form)
    assert page.context["power"].seeds_needed == 18
    assert "<strong>18 seeds</strong>" in page.content.decode()
    assert operator.post("/experiments/new/", form | {"gain": "x"}).status_code == 422
    printed = run_command("experiment", "power", "--deviation", "0.1", "--gain", "0.1", "--seeds", "1")
    assert "a gain of 0.1 needs 18 seeds an arm\n1 seeds an arm show no gain\n" in printed
    for wrong in (
        "gain=0&deviation=1", "gain=nan&deviation=1", "gain=1", "gain=1&deviation=-1", "gain=inf&deviation=1",
        "seeds=0&deviation=1", "seeds=10001&deviation=1", f"seeds={'9' * 400}&deviation=1",
        "seeds=2&deviation=1e308",
    ):  # fmt: skip
        assert operator.get(f"/api/v1/experiments/power?{wrong}").status_code == 422, wrong
    with pytest.raises(CommandFailedError, match="standard deviation"):
        run_command("experiment", "power", "--gain", "1")
