"""Sample of a phase's rollouts: lengths, tool and grading times with their long tails.

A synchronous iteration waits for its slowest rollout, so means are not enough. The sample has the quantiles
of log-normal distributions, combined in a fixed random order: the same configuration always has the same
plan.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from engine.config.rollout import AUDITED_SHARE, EVALUATION_DRAWS, AgentConfig, GradingConfig
from engine.errors import ConfigError
from engine.planning.assumptions import Assumptions

SAMPLE = 128
"""Maximum size of a sample; larger phases are represented by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Rollout that no timeout ends."""

    prompt: int
    """Tokens of the first prompt."""
    context: int
    """Tokens of the whole conversation."""
    sampled: int
    """Tokens that the policy samples."""
    tool_s: float
    """Time of all tool calls, seconds."""
    grading_s: float
    """Time of its grading without the start of a sandbox, seconds."""


def sample_rollouts(
    num: int, agent: AgentConfig, grading: GradingConfig, assume: Assumptions, *, evaluation: bool = False
) -> list[Rollout]:
    """Return a sample of ``num`` rollouts, at most ``SAMPLE``.

    Raises:
        ConfigError: no prompt fits the context.
    """
    if assume.prompt_tokens >= agent.max_context:
        raise ConfigError(
            f"agent.max_context is {agent.max_context}, but a prompt is assumed to have "
            f"{assume.prompt_tokens} tokens: change one of them (--assume prompt_tokens=…)"
        )
    size = min(num, SAMPLE)
    limit = min(agent.max_context, assume.prompt_tokens + agent.max_steps * assume.tokens_per_step)
    contexts = _quantiles(size, assume.context_tokens, assume.context_spread, seed=1)
    tools = _quantiles(size, assume.tool_s, assume.tool_spread, seed=2)
    times = _gradings(size, grading, assume, evaluation=evaluation)
    rollouts = []
    for wanted, tool_s, grading_s in zip(contexts, tools, times, strict=True):
        context = round(max(assume.prompt_tokens + 1, min(wanted, limit)))
        added = context - assume.prompt_tokens
        steps = added / assume.tokens_per_step
        rollouts.append(
            Rollout(
                prompt=assume.prompt_tokens,
                context=context,
                sampled=max(1, round(assume.sampled_share * added)),
                tool_s=steps * min(tool_s, agent.command_timeout_s),
                grading_s=grading_s,
            )
        )
    return rollouts


def _gradings(size: int, grading: GradingConfig, assume: Assumptions, *, evaluation: bool) -> Sequence[float]:
    """Return the times of gradings: one run of the tests, and mutated runs of audited submissions."""
    timeout = (evaluation and grading.evaluation_timeout_s) or grading.timeout_s
    share = {"always": 1.0, "sample": 1 / AUDITED_SHARE, "off": 0.0}[grading.counterfactual]
    share = 1.0 if evaluation and share else share
    audited = size * assume.solve_rate * share
    runs = 1 + (EVALUATION_DRAWS if evaluation else 1)
    times = [min(time, timeout) for time in _quantiles(size, assume.grading_s, assume.grading_spread, seed=3)]
    return [time * (runs if i < audited else 1) for i, time in enumerate(times)]


def _quantiles(size: int, mean: float, spread: float, *, seed: int) -> list[float]:
    """Return quantiles of a log-normal distribution in a random order."""
    normal = NormalDist(math.log(mean) - spread**2 / 2, spread) if mean else None
    values = [math.exp(normal.inv_cdf((i + 0.5) / size)) if normal else 0.0 for i in range(size)]
    random.Random(seed).shuffle(values)
    return values
