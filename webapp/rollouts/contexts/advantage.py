"""Arithmetic of an advantage under its run's objective: r − mean of the other rollouts = A."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from engine.algorithms.describe import advantage_equation
from engine.algorithms.terms import has_kl_reward
from engine.config.learning.algorithm import AlgorithmConfig
from webapp.rollouts.models.trajectories import Trajectory
from webapp.runs.models.runs import Run

_TOLERANCE = 1e-5
"""Tolerance for rounding errors of an advantage."""


@dataclass(frozen=True, slots=True)
class Sibling:
    """A trajectory inside its group, with its advantage explained."""

    trajectory: Trajectory
    formula: str
    """``1 − 0.286`` or, where a standard deviation divides it, ``(1 − 0.286) ÷ 0.488``; empty if unknown."""


def algorithm_of(run: Run) -> AlgorithmConfig | None:
    """Return the objective of a run; None where it has none, or one that this version does not know."""
    try:
        return AlgorithmConfig.model_validate(run.config["algorithm"])
    except (KeyError, ValidationError):
        return None


def equation(run: Run) -> str:
    """Return the advantage of a run's objective as an equation; of runs without one ``Advantage``."""
    algorithm = algorithm_of(run)
    return advantage_equation(algorithm) if algorithm else "Advantage"


def formula(trajectory: Trajectory, algorithm: AlgorithmConfig | None) -> str:
    """Return the formula of the stored advantage from reward and baseline; empty if it is unknown."""
    reward, baseline, advantage = trajectory.reward, trajectory.baseline, trajectory.advantage
    if reward is None or baseline is None or advantage is None or algorithm is None:
        return ""
    is_divided = algorithm.std_normalisation != "none"
    counted, reward_text = reward, _short(reward)
    if trajectory.termination in algorithm.filtered_reasons and algorithm.filtered_baseline == "keep_zero":
        counted, reward_text = 0.0, "0"
    elif algorithm.overlong_buffer or has_kl_reward(algorithm):
        # The penalty is not stored. Without a divisor it follows from the advantage, with one it is unknown.
        if is_divided:
            return ""
        counted = advantage + baseline
        if abs(penalty := reward - counted) > _TOLERANCE:
            sign = "−" if penalty > 0 else "+"
            reward_text = f"{reward_text} {sign} {_short(abs(penalty))}"
    difference = counted - baseline
    text = reward_text if algorithm.baseline == "none" else f"{reward_text} − {_short(baseline)}"
    if math.isclose(difference, advantage, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
        return text
    spread = difference / advantage if is_divided and advantage else 0.0
    return f"({text}) ÷ {_short(spread)}" if spread > 0 else ""


def _short(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".").replace("-", "−") or "0"


def siblings(trajectories: Iterable[Trajectory], algorithm: AlgorithmConfig | None) -> tuple[Sibling, ...]:
    """Return siblings with their arithmetic, in the order given."""
    return tuple(Sibling(trajectory, formula(trajectory, algorithm)) for trajectory in trajectories)
