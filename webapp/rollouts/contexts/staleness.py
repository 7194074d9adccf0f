"""Staleness of a trajectory: updates between the weights that sampled it and those it was trained on."""

from __future__ import annotations

from dataclasses import dataclass

from webapp.rollouts.models.trajectories import Trajectory


@dataclass(frozen=True, slots=True)
class Staleness:
    """Staleness of a trajectory whose update is known, in policy versions."""

    iteration: int
    """Iteration that trained on it."""
    version: int
    """Policy version before that update."""
    least: int
    most: int


def staleness_of(trajectory: Trajectory) -> Staleness | None:
    """Return the staleness of a trajectory; None where its batch was not reported or no step was sampled."""
    iteration, version = trajectory.trained_iteration, trajectory.trained_version
    if iteration is None or version is None or not trajectory.num_steps:
        return None
    least, most = version - trajectory.policy_version_max, version - trajectory.policy_version_min
    return Staleness(iteration, version, least, most)
