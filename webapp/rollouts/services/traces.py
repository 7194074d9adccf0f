"""Storage of the token traces of trained trajectories."""

from __future__ import annotations

from engine.events.types import TrajectoryTrained
from webapp.rollouts.models.trajectories import TokenTrace, Trajectory
from webapp.runs.models.runs import Run


def store(*, run: Run, event: TrajectoryTrained) -> None:
    """Store the trace of a stored trajectory; that of a repeated update replaces the earlier one."""
    ref = event.ref
    found = Trajectory.objects.filter(
        run=run, phase=ref.phase, iteration=ref.iteration, task_key=ref.task_id, index=ref.index
    ).first()
    if found is not None:
        TokenTrace.objects.update_or_create(
            trajectory=found,
            defaults={
                "iteration": event.iteration,
                "step": event.step,
                "losses": event.losses,
                "weight": event.weight,
                "length": event.tokens.length,
                "data": event.tokens.data,
            },
        )
