"""Assumptions that differ from the defaults because of a run's configuration.

The engine's own tiny policies have far smaller tasks than published models; without thinking, less is
sampled. Measurements of finished runs replace these values.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.config.environment import FrozenLakeConfig
from engine.config.run import TrainRun
from engine.planning.assumptions import Measured
from engine.planning.shapes import is_tiny

_QUICKSTART = {
    "prompt_tokens": 96,
    "context_tokens": 418,
    "context_spread": 0.2,
    "tokens_per_step": 111,
    "sampled_share": 0.46,
    "tool_s": 0.09,
    "sandbox_start_s": 0.2,
    "grading_s": 1.6,
    "solve_rate": 0.6,
    "sampler_slowdown": 27,
    "image_gb": 0.02,
}
_FROZENLAKE = {
    "prompt_tokens": 60,
    "context_tokens": 160,
    "context_spread": 0.3,
    "tokens_per_step": 21,
    "sampled_share": 0.14,
    "sampler_slowdown": 27,
}
_WITHOUT_THINKING = Measured(value=0.32, origin="ten trajectories of R2E-Gym's agent without thinking")


def typical_assumptions(config: TrainRun) -> dict[str, Measured]:
    """Return the assumptions that differ from the defaults, and why."""
    if not is_tiny(config.policy.checkpoint):
        return {"sampled_share": _WITHOUT_THINKING} if config.agent.thinking == "off" else {}
    lake = isinstance(config.environment, FrozenLakeConfig)
    values: Mapping[str, float] = _FROZENLAKE if lake else _QUICKSTART
    origin = "an estimate from FrozenLake's turns" if lake else "a run of the quickstart on two busy cores"
    return {name: Measured(value=value, origin=origin) for name, value in values.items()}
