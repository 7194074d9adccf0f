"""Assumptions of a plan: all inputs besides the run's configuration and data sheets.

The defaults describe software-engineering tasks; there is one set for all published models, and some other
values for the engine's own tiny policies. Measurements of finished runs replace them
(``engine.planning.calibration``), and ``--assume mfu=0.4`` replaces either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError

from engine.config.base import Section, config_error
from engine.errors import ConfigError


class Assumptions(Section):
    """Named assumptions; each description ends with its source."""

    prompt_tokens: int = Field(default=4100, ge=1)
    """Mean length of the first prompt, tokens. Source: ten trajectories of R2E-Gym's
    agent, 4,070; 3,700 to 5,700."""
    context_tokens: int = Field(default=37_000, ge=1)
    """Mean length of a conversation that no limit ends, tokens. Source: DeepSWE's evaluation in 64K tokens,
    25,200 to 49,500 (rllm#138); ten trajectories of R2E-Gym's agent, 37,800."""
    context_spread: float = Field(default=0.4, gt=0)
    """Standard deviation of the logarithm of a conversation's length. Source: ten trajectories of R2E-Gym's
    agent, 0.3; rllm#138's two means are 0.7 apart."""
    tokens_per_step: int = Field(default=750, ge=1)
    """Mean tokens that a turn adds, response and observation. Source: DeepSWE's evaluation, 45,600 tokens in
    64.8 steps (rllm#138); ten trajectories of R2E-Gym's agent, 820."""
    sampled_share: float = Field(default=0.5, gt=0, le=1)
    """Share of the tokens after the prompt that the policy samples. Source: ten trajectories of R2E-Gym's
    agent without thinking, 0.32; DeepSWE thinks 100 to 2,000 tokens a step beside that (blog, section 5)."""
    tool_s: float = Field(default=1.6, ge=0)
    """Mean time of a tool call, seconds. Source: 413 calls of ten trajectories of R2E-Gym's agent, 1.6;
    median 0.1, five of them over 80 s."""
    tool_spread: float = Field(default=1.1, gt=0)
    """Standard deviation of the logarithm of a rollout's tool time. Source: ten trajectories of R2E-Gym's
    agent, 1.1."""
    sandbox_start_s: float = Field(default=20.0, ge=0)
    """Time from the request of a sandbox to its first command, seconds. Source: mean of SkyRL's remote
    sandboxes (SkyRL#9)."""
    grading_s: float = Field(default=24.0, ge=0)
    """Mean time of a task's tests, seconds. Source: ten trajectories of R2E-Gym's agent, 24."""
    grading_spread: float = Field(default=1.4, gt=0)
    """Standard deviation of the logarithm of a task's grading time. Source: ten trajectories of R2E-Gym's
    agent, 1.4."""
    solve_rate: float = Field(default=0.4, ge=0, le=1)
    """Share of rollouts that pass, of which some are audited with mutated tests. Source: DeepSWE's
    validation, 23 to 42 % (blog, Figure 2)."""
    trained_share: float = Field(default=1.0, gt=0, le=1)
    """Share of trajectories with a gradient. Source: none, an upper bound: groups of equal rewards and
    filtered trajectories are left out."""
    uniform_share: float = Field(default=0.5, ge=0, lt=1)
    """Share of groups whose rewards are all equal, which ``algorithm.dynamic_sampling`` replaces. Source: the
    175 iterations of ``quickstart-pool``, 0.51 (the first 20: 0.37); an estimate for published models."""
    mfu: float = Field(default=0.25, gt=0, le=1)
    """Model FLOPs utilisation of an update of a dense model. Source: prime-rl's benchmarks of Qwen3-4B, 14 %
    at 16K tokens and 36 % at 64K: their mean."""
    mfu_experts: float = Field(default=0.03, gt=0, le=1)
    """Model FLOPs utilisation of an update of all weights of a mixture of experts. Source: prime-rl's
    benchmark of Qwen3-30B-A3B with FSDP2, 2.9 % at 16K tokens."""
    mfu_experts_lora: float = Field(default=0.29, gt=0, le=1)
    """Model FLOPs utilisation of an update of a mixture of experts' adapters. Source: prime-rl's benchmark of
    Qwen3-30B-A3B, 29 % at 64K tokens."""
    sampler_mfu: float = Field(default=0.4, gt=0, le=1)
    """FLOPs utilisation of the sampler where arithmetic limits it (prefill, many sequences). Source: an
    estimate; vLLM's 4,006 tokens/s of Qwen3-32B with short prompts on one H100 (gpustack) are 27 %, waits
    included."""
    sampler_bandwidth: float = Field(default=0.6, gt=0, le=1)
    """Share of the memory bandwidth that decoding reaches. Source: an estimate; Qwen3-32B on one H100 takes
    at least 43 ms a token (gpustack), of which reading its weights at this share are 33."""
    sampler_slowdown: float = Field(default=1.0, gt=0)
    """Time per sampled token divided by its estimate from bandwidth, arithmetic and overhead. Source: 1 by
    definition; finished runs measure it."""
    decode_overhead_s: float = Field(default=0.005, ge=0)
    """Time between two decoding steps for scheduling, sampling and tensor parallelism, seconds. Source: an
    estimate."""
    sampler_reserve: float = Field(default=0.05, ge=0, lt=1)
    """Share of a GPU's memory that a vLLM server needs beside weights and KV cache. Source: an estimate."""
    publish_bandwidth: float = Field(default=9e9, gt=0)
    """Bytes per second of a publication of weights between GPUs. Source: slime, 61 GB of a 30B model in 7
    s."""
    publish_files_bandwidth: float = Field(default=2e9, gt=0)
    """Bytes per second of a publication by files. Source: an estimate, one NVMe disk."""
    sandbox_cores: float = Field(default=1.0, gt=0)
    """CPU cores of a sandbox. Source: R2E-Gym's pods request one."""
    image_gb: float = Field(default=0.4, gt=0)
    """Disk of a task's image, GB. Source: R2E-Gym's images, 300 to 500 MB."""
    dataset_tasks: int = Field(default=4578, ge=1)
    """Number of tasks with images of their own. Source: R2E-Gym's subset without sympy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Value that replaces a default."""

    value: float
    origin: str
    """E.g. ``run 12``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """Assumptions of a plan and their origins."""

    assume: Assumptions
    origins: Mapping[str, str]
    """Origin of each assumption that is no default."""


GIVEN = "given"
"""Origin of assumptions given by a person."""


def gather_assumptions(measured: Mapping[str, Measured], given: Mapping[str, Any]) -> Basis:
    """Return the defaults, overridden by measured and then by given values.

    Raises:
        ConfigError: as ``parse_assumptions``.
    """
    values = {name: measurement.value for name, measurement in measured.items()}
    origins = {name: measurement.origin for name, measurement in measured.items()}
    return Basis(
        assume=parse_assumptions({**values, **given}), origins={**origins, **dict.fromkeys(given, GIVEN)}
    )


def parse_assumptions(given: Mapping[str, Any]) -> Assumptions:
    """Return the defaults with some replaced. Raises ConfigError that names every wrong one."""
    unknown = sorted(set(given) - set(Assumptions.model_fields))
    if unknown:
        raise ConfigError(
            f"unknown assumption '{', '.join(unknown)}'; known: {', '.join(Assumptions.model_fields)}"
        )
    try:
        return Assumptions(**given)
    except ValidationError as error:
        raise config_error(error, what="assumption") from None
