"""The arithmetic of an advantage in words: r − mean of the others = A."""

from __future__ import annotations

from dataclasses import dataclass

from webapp.models import Trajectory


@dataclass(frozen=True, slots=True)
class Sibling:
    """A trajectory inside its group, with its advantage explained."""

    trajectory: Trajectory
    formula: str
    """``1 − 0.286`` or, where the group's spread divides it, ``(1 − 0.286) ÷ 0.488``; empty if unknown."""


def _short(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".").replace("-", "−") or "0"


def formula(trajectory: Trajectory) -> str:
    """Return how the stored advantage follows from the stored reward and baseline."""
    reward, baseline, advantage = trajectory.reward, trajectory.baseline, trajectory.advantage
    if reward is None or baseline is None or advantage is None:
        return ""
    difference = reward - baseline
    text = f"{_short(reward)} − {_short(baseline)}"
    if abs(difference - advantage) <= 1e-6 * max(1.0, abs(difference)):
        return text
    return f"({text}) ÷ {_short(difference / advantage)}" if advantage else text


def siblings(trajectories: list[Trajectory]) -> tuple[Sibling, ...]:
    """Return siblings with their arithmetic, in the order given."""
    return tuple(Sibling(trajectory, formula(trajectory)) for trajectory in trajectories)
