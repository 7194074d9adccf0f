"""Finished trajectories as input of the objective."""

from __future__ import annotations

from collections import defaultdict

from django.db.models import F, Max

from engine.algorithms.advantages import TrajectoryOutcome
from engine.types import TerminationReason
from webapp.rollouts.models.trajectories import Step, Trajectory


def iteration_outcomes(run_id: int, *, phase: str, iteration: int) -> dict[str, list[TrajectoryOutcome]]:
    """Return every finished trajectory of an iteration or evaluation by task key, ordered by index."""
    rows = list(
        Trajectory.objects.filter(
            run_id=run_id, phase=phase, iteration=iteration, state=Trajectory.State.FINISHED
        )
        .order_by("task_key", "index")
        .values_list("pk", "task_key", "index", "reward", "termination")
    )
    lengths = dict(
        Step.objects.filter(trajectory_id__in=[row[0] for row in rows])
        .order_by()
        .values_list("trajectory_id")
        .annotate(length=Max(F("prompt_tokens") + F("generated_tokens")))
    )
    outcomes: dict[str, list[TrajectoryOutcome]] = defaultdict(list)
    for pk, task_key, index, reward, termination in rows:
        reason = TerminationReason(termination)
        outcomes[task_key].append(
            TrajectoryOutcome(index=index, reward=reward, termination=reason, length=lengths.get(pk, 0))
        )
    return dict(outcomes)
