"""Assumptions from finished runs: the plan of a finished run agrees with what the run measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.recipes import resolve
from engine.planning import GPUS, gather_assumptions, plan_run
from engine.planning.calibration import RunRecord, gpu_of, measured_speed, measured_work, mfu_name
from engine.planning.hardware import CPU
from engine.planning.plan import train_run

RUN = json.loads((Path(__file__).parent / "quickstart_run.json").read_text())
"""Five iterations of the recipe ``quickstart`` on two busy cores: means of its 320 rollouts, and mean times
of its iterations."""
RECORD = RunRecord(**RUN["record"])
BOUND = 0.25
"""Of an iteration's time: lengths and times of rollouts are fitted, waits and gradings are not."""


def test_the_plan_of_a_finished_quickstart_agrees_with_it() -> None:
    config = train_run(resolve("quickstart"))
    measured = measured_work(RECORD) | measured_speed(RECORD, config, GPUS[CPU])
    plan = plan_run(config, basis=gather_assumptions(measured, {}))
    assert plan.tokens / plan.rollouts == pytest.approx(RECORD.context_tokens, rel=0.02)
    assert plan.sampled / plan.rollouts == pytest.approx(RECORD.generated_tokens, rel=0.02)
    assert plan.sampling_s == pytest.approx(RECORD.model_s, rel=0.02)
    assert plan.update_s == pytest.approx(RECORD.update_s, rel=0.001)
    evaluations_s = plan.iteration[-1].seconds
    assert plan.iteration_s - plan.publication_s - evaluations_s == pytest.approx(
        RUN["rollout_s"] + RUN["update_s"], rel=BOUND
    )
    assert set(plan.origins.values()) == {"quickstart"}


@pytest.mark.parametrize(("partial", "uniform"), [(None, None), (0.7, 0.3), (0.0, 0.99)])
def test_uniform_groups_are_those_of_the_finished_run(partial: float | None, uniform: float | None) -> None:
    found = measured_work(replace(RECORD, partial_share=partial)).get("uniform_share")
    assert (found and found.value) == (uniform and pytest.approx(uniform))


def test_a_person_overrides_what_was_measured() -> None:
    basis = gather_assumptions(measured_work(RECORD), {"solve_rate": 0.9})
    assert basis.assume.solve_rate == 0.9
    assert (basis.origins["solve_rate"], basis.origins["tool_s"]) == ("given", "quickstart")
    assert "mfu" not in basis.origins


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("cpu", "CPU"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA H100 PCIe", None),
        ("", None),
    ],
)
def test_devices_are_recognised_by_the_names_that_torch_gives_them(device: str, name: str | None) -> None:
    found = gpu_of(device)
    assert (found.name if found else None) == name


def test_the_utilisation_belongs_to_the_kind_of_update() -> None:
    kinds = {
        "deepswe-32b": "mfu",
        "deepswe-qwen3-coder-30b": "mfu_experts",
        "qwen3-coder-30b-8gpu": "mfu_experts_lora",
    }
    assert {recipe: mfu_name(train_run(resolve(recipe))) for recipe in kinds} == kinds
