"""Plans that take assumptions from finished runs in the database."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from engine.config.recipes import resolve
from engine.planning import RunPlan
from webapp.models import Group, Iteration, Run, Trajectory
from webapp.runs.selectors import plans

pytestmark = pytest.mark.django_db
MODEL_S, UPDATE_S = 6.0, 3.0


def finished(
    recipe: str = "quickstart", *, device: str = "cpu", state: str = "succeeded", **settings: Any
) -> int:
    """Create a finished run of one iteration with two rollouts of 400 and 440 tokens."""
    config = resolve(recipe, settings).model_dump(mode="json")
    run = Run.objects.create(kind="train", name="r", config=config, state=state, summary={"device": device})
    now = timezone.now()
    metrics = {"tokens/prompt_mean": 100.0, "time/tests_mean": 1.5, "time/update": UPDATE_S}
    Iteration.objects.create(run=run, index=0, policy_version=0, started_at=now, metrics=metrics)
    group = Group.objects.create(run=run, iteration=0, phase="train", task_key="t", started_at=now)
    for index, context in enumerate((400, 440)):
        Trajectory.objects.create(
            run=run, group=group, iteration=0, phase="train", task_key="t", index=index, epoch=1,
            state="finished", started_at=now, active_at=now, num_steps=4, reward=float(index),
            context_tokens=context, generated_tokens=160, tool_seconds=0.4, start_seconds=0.5,
            model_seconds=MODEL_S,
        )  # fmt: skip
    return int(run.pk)


def planned(recipe: str = "quickstart", **settings: Any) -> RunPlan:
    return plans.plan(resolve(recipe, settings), gpus=None, assumptions={})


def test_finished_run_replaces_assumptions_and_is_named_as_their_origin() -> None:
    before = planned()
    run = finished()
    plan = planned()
    assert plan.assumptions.prompt_tokens == 100
    assert plan.assumptions.context_tokens == 420
    assert plan.assumptions.tokens_per_step == 80
    assert plan.assumptions.sampled_share == pytest.approx(0.5)
    assert plan.assumptions.tool_s == pytest.approx(0.1)
    assert plan.assumptions.grading_s == pytest.approx(1.0)
    assert plan.assumptions.solve_rate == pytest.approx(0.5)
    assert {plan.origins[name] for name in ("prompt_tokens", "mfu", "sampler_slowdown")} == {f"run {run}"}
    assert plan.sampling_s == pytest.approx(MODEL_S, rel=0.05)
    assert plan.update_s == pytest.approx(UPDATE_S, rel=0.05)
    assert plan.origins["image_gb"] == before.origins["image_gb"]


def test_calibration_ignores_runs_of_other_models_datasets_and_devices() -> None:
    finished(state="failed")
    finished("frozenlake")
    assert not [origin for origin in planned().origins.values() if origin.startswith("run ")]
    pool = finished("quickstart-pool", device="NVIDIA H100 80GB HBM3")
    assert not [origin for origin in planned().origins.values() if origin == f"run {pool}"]
    elsewhere = finished("quickstart", device="NVIDIA H100 80GB HBM3")
    plan = planned()
    assert plan.origins["prompt_tokens"] == f"run {elsewhere}"
    assert "mfu" not in plan.origins
    speed = finished("quickstart-pool")
    plan = planned()
    assert plan.origins["mfu"] == f"run {speed}"
    assert plan.origins["prompt_tokens"] == f"run {elsewhere}", "the same dataset"
