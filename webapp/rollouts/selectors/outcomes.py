"""Finished trajectories as input of the objective."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from django.db.models import F, Max
from django.db.models.functions import Coalesce

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


class UpdateGroups(NamedTuple):
    """Finished groups of one update."""

    iteration: int
    task_keys: list[str]
    outcomes: list[list[TrajectoryOutcome]]
    num_tokens: list[list[int]]
    """Sampled tokens of each trajectory."""


def update_groups(
    run_id: int, *, iteration: int | None = None, is_sync: bool = True
) -> Iterator[UpdateGroups]:
    """Yield the finished training groups of each update, or of one, in order.

    Args:
        run_id: the run.
        iteration: iteration of the update; None yields all.
        is_sync: whether every group is trained on in the iteration that collected it. Otherwise groups that
            no update has taken are left out.
    """
    rows = (
        Trajectory.objects.filter(run_id=run_id, phase="train", state=Trajectory.State.FINISHED)
        .annotate(update=Coalesce("trained_iteration", "iteration"))
        .order_by("update", "iteration", "task_key", "index")
    )
    if not is_sync:
        rows = rows.filter(trained_iteration__isnull=False)
    if iteration is not None:
        rows = rows.filter(update=iteration)
    columns = rows.values_list(
        "update",
        "iteration",
        "task_key",
        "index",
        "reward",
        "termination",
        "context_tokens",
        "generated_tokens",
    )
    for update, of_update in groupby(columns.iterator(chunk_size=5000), key=itemgetter(0)):
        found = UpdateGroups(update, [], [], [])
        for (_, _, task_key), of_group in groupby(of_update, key=itemgetter(0, 1, 2)):
            members = list(of_group)
            found.task_keys.append(task_key)
            found.outcomes.append(
                [
                    TrajectoryOutcome(
                        index=index, reward=reward, termination=TerminationReason(reason), length=length
                    )
                    for *_, index, reward, reason, length, _ in members
                ]
            )
            found.num_tokens.append([row[-1] for row in members])
        yield found
