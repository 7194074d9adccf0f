"""Calibration of assumptions by the measurements of finished runs.

Measured rollouts (lengths, tools, gradings) apply to plans of the same model on the same dataset, speed to
plans of the same model on the same GPU. Speeds are fitted on the plan of the finished run itself: with them,
its planned sampling and update times equal the measured ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from engine.config.run import TrainRun
from engine.planning.assumptions import Basis, Measured, parse_assumptions
from engine.planning.hardware import CPU, GPUS, Gpu, Hardware
from engine.planning.plan import plan_run
from engine.planning.shapes import find_shape

_ROUNDS = 5
"""Number of plans until the sampling time equals the measured one to about 1 %."""
_MIN_SPREAD = 0.01
_MAX_UNIFORM = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Measurements of a finished training run: means over its training rollouts and iterations."""

    origin: str
    """Name of the run, e.g. ``run 12``."""
    prompt_tokens: float
    """Length of the first prompt."""
    context_tokens: float
    """Length of the whole conversation at its end."""
    context_spread: float
    """Standard deviation of the logarithm of that length."""
    steps: float
    generated_tokens: float
    tool_s: float
    """All tool calls of a rollout, seconds."""
    tool_spread: float
    """Standard deviation of the logarithm of that time."""
    start_s: float
    """Pull of the image and start of the sandbox, seconds."""
    grading_s: float
    """Grading with the start of its sandbox, without waits and mutated runs, seconds; 0 when reused."""
    solve_rate: float
    model_s: float
    """Time of a rollout in the sampler, seconds."""
    update_s: float
    """Time of an iteration's update and publication, seconds."""
    partial_share: float | None = None
    """Share of groups in which some rollouts pass and others fail; None where it is unknown."""


def measured_work(record: RunRecord) -> dict[str, Measured]:
    """Return the assumptions about rollouts, for plans of the same model and dataset."""
    added = max(1.0, record.context_tokens - record.prompt_tokens)
    steps = max(1.0, record.steps)
    values = {
        "prompt_tokens": max(1, round(record.prompt_tokens)),
        "context_tokens": max(2, round(record.context_tokens)),
        "context_spread": max(_MIN_SPREAD, record.context_spread),
        "tokens_per_step": max(1, round(added / steps)),
        "sampled_share": min(1.0, max(_MIN_SPREAD, record.generated_tokens / added)),
        "tool_s": record.tool_s / steps,
        "tool_spread": max(_MIN_SPREAD, record.tool_spread),
        "sandbox_start_s": record.start_s,
        "grading_s": max(0.0, record.grading_s - record.start_s),
        "solve_rate": record.solve_rate,
    }
    if record.partial_share is not None:
        values["uniform_share"] = min(_MAX_UNIFORM, 1 - record.partial_share)
    return {name: Measured(value=value, origin=record.origin) for name, value in values.items()}


def measured_speed(record: RunRecord, config: TrainRun, gpu: Gpu) -> dict[str, Measured]:
    """Return the assumptions about speed, for plans of the same model on the same GPU.

    Args:
        record: of the finished run.
        config: its configuration.
        gpu: its GPU.
    """
    mfu = mfu_name(config)
    values = {name: measured.value for name, measured in measured_work(record).items()}
    slowdown = 1.0
    for _ in range(_ROUNDS):
        assume = parse_assumptions({**values, "sampler_slowdown": slowdown, mfu: 1.0})
        plan = plan_run(config, hardware=Hardware(gpu=gpu, count=1), basis=Basis(assume=assume, origins={}))
        slowdown *= record.model_s / max(plan.sampling_s, 1e-9)
    share = plan.update_s / max(record.update_s, 1e-9)
    speeds = {"sampler_slowdown": max(slowdown, 1e-6), mfu: share}
    return {name: Measured(value=value, origin=record.origin) for name, value in speeds.items()}


def mfu_name(config: TrainRun) -> str:
    """Return the name of the assumption about the utilisation of a run's update."""
    if not find_shape(config.policy.checkpoint).experts:
        return "mfu"
    return "mfu_experts_lora" if config.trainer.lora_rank else "mfu_experts"


def gpu_of(device: str) -> Gpu | None:
    """Return the GPU that torch calls ``device``, e.g. ``NVIDIA H100 80GB HBM3``; None for an unknown one."""
    if device == "cpu":
        return GPUS[CPU]
    part = re.sub(r"^(NVIDIA |GeForce )*", "", device)
    words = re.split(r"[ -]", part)
    if {"PCIe", "NVL"} & set(words):
        return None  # slower than the SXM module of the same name
    for name, gpu in sorted(GPUS.items(), key=lambda item: -len(item[0])):
        if set(name.split("-")) <= set(words):
            return gpu
    return None


def same_settings(config: TrainRun, other: Mapping[str, object]) -> bool:
    """Return whether another run's configuration has the same sampler and the same kind of update."""
    policy, trainer = other.get("policy"), other.get("trainer")
    if not isinstance(policy, Mapping) or not isinstance(trainer, Mapping):
        return False
    return policy.get("engine") == config.policy.engine and bool(trainer.get("lora_rank")) == bool(
        config.trainer.lora_rank
    )
