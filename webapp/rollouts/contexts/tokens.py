"""Reasons why a trajectory has no token ids."""

from __future__ import annotations

from webapp.rollouts.models.trajectories import Trajectory
from webapp.runs.models.runs import Run


def tokenless_reason(run: Run, trajectory: Trajectory) -> str:
    """Return the reason why a trajectory has no token ids; empty while they may still be recorded."""
    if run.is_imported:
        return "No token ids: the imported file has text only."
    if run.uses_endpoint:
        return "No token ids: the endpoint returns text only."
    if run.answers_in_text:
        return "No token ids: a scripted policy acts in text only."
    if trajectory.state == Trajectory.State.RUNNING:
        return ""
    if not trajectory.num_steps:
        return "No token ids: the rollout ended before the first response."
    return "No token ids were recorded with this trajectory."
