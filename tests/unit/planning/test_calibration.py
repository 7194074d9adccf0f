"""Assumptions from finished runs: the plan of a finished run matches its measurements."""

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
"""Tolerance for an iteration's time: rollout lengths and times are fitted, waits and gradings are not."""


def test_plan_of_a_finished_quickstart_matches_its_measurements() -> None:
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
def test_uniform_share_is_measured_in_the_finished_run(partial: float | None, uniform: float | None) -> None:
    share = measured_work(replace(RECORD, partial_share=partial)).get("uniform_share")
    assert (share and share.value) == (uniform and pytest.approx(uniform))


def test_given_assumptions_override_measured_ones() -> None:
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
def test_gpus_are_recognised_by_their_torch_names(device: str, name: str | None) -> None:
    gpu = gpu_of(device)
    assert (gpu.name if gpu else None) == name


def test_utilisation_assumption_depends_on_the_kind_of_update() -> None:
    kinds = {
        "deepswe-32b": "mfu",
        "deepswe-qwen3-coder-30b": "mfu_experts",
        "qwen3-coder-30b-8gpu": "mfu_experts_lora",
    }
    assert {recipe: mfu_name(train_run(resolve(recipe))) for recipe in kinds} == kinds
