"""Use of the budgets of experiments."""

from __future__ import annotations

from django.db.models import Sum

from webapp.experiments.models import Experiment
from webapp.rollouts.models.trajectories import Group


def count_rollouts(experiment_id: int) -> int:
    """Return the number of rollouts that the runs of an experiment started, in evaluations too."""
    groups = Group.objects.filter(run__experiment=experiment_id).order_by()
    return int(groups.aggregate(rollouts=Sum("size"))["rollouts"] or 0)


def spent_budget(experiment: Experiment | None) -> str:
    """Return that an experiment's budget is spent, in words; empty while it is not, and without a budget."""
    if experiment is None or experiment.max_rollouts is None:
        return ""
    rollouts = count_rollouts(experiment.pk)
    if rollouts < experiment.max_rollouts:
        return ""
    return (
        f"the budget of experiment {experiment.name} is spent: {rollouts:,} of {experiment.max_rollouts:,} "
        "rollouts; raise it to start further runs"
    )
