"""Groups of one task over a run's iterations and evaluations, with the lengths of their rollouts."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Avg, F, Q, Sum

from webapp.rollouts.models.trajectories import Group

MOST_GROUPS = 2_000
"""Newest groups that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPoint:
    """The rollouts of a task in one iteration or evaluation."""

    group_id: int
    phase: str
    iteration: int
    solved: int
    graded: int
    steps: float | None
    """Mean of the finished rollouts."""
    generated: float | None
    """Generated tokens per step of the finished rollouts."""
    thinking: float | None
    """Thinking tokens per step; None where no rollout reports them."""

    @property
    def rate(self) -> float | None:
        """Return the share that passed; None without a graded rollout."""
        return self.solved / self.graded if self.graded else None


def task_history(run_id: int, task_key: str) -> list[TaskPoint]:
    """Return the newest groups of a task, oldest iteration first, with one query."""
    finished = Q(trajectories__state="finished", trajectories__num_steps__gt=0)
    known = finished & Q(trajectories__thinking_tokens__isnull=False)
    rows = (
        Group.objects.filter(run_id=run_id, task_key=task_key)
        .order_by("-iteration", "-phase")
        .annotate(
            mean_steps=Avg("trajectories__num_steps", filter=finished),
            all_steps=Sum("trajectories__num_steps", filter=finished),
            generated=Sum("trajectories__generated_tokens", filter=finished),
            known_steps=Sum("trajectories__num_steps", filter=known),
            thinking=Sum("trajectories__thinking_tokens", filter=known),
        )
        .values_list(
            "pk", "phase", "iteration", "num_solved", "num_graded", "mean_steps",
            F("generated") * 1.0 / F("all_steps"), F("thinking") * 1.0 / F("known_steps"),
        )[:MOST_GROUPS]
    )  # fmt: skip
    return [
        TaskPoint(
            group_id=pk, phase=phase, iteration=iteration, solved=solved, graded=graded, steps=steps,
            generated=None if generated is None else float(generated),
            thinking=None if thinking is None else float(thinking),
        )
        for pk, phase, iteration, solved, graded, steps, generated, thinking in reversed(rows)
    ]  # fmt: skip
