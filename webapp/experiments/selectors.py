"""Reads of experiments."""

from __future__ import annotations

from django.db.models import Count, Max, Q

from webapp.experiments.models import Experiment
from webapp.runs.selectors.runs import ACTIVE_STATES


def list_experiments() -> list[Experiment]:
    """Return every experiment with ``num_runs``, ``num_active`` and ``last_run_at``."""
    return list(
        Experiment.objects.select_related("created_by")
        .annotate(
            num_runs=Count("runs"),
            num_active=Count("runs", filter=Q(runs__state__in=ACTIVE_STATES)),
            last_run_at=Max("runs__created_at"),
        )
        .order_by("name")
    )


def get_experiment(experiment_id: int) -> Experiment | None:
    """Return one experiment."""
    return Experiment.objects.select_related("created_by").filter(pk=experiment_id).first()


def experiment_named(name: str) -> Experiment:
    """Return the experiment of this name. Raises Experiment.DoesNotExist where there is none."""
    experiment = Experiment.objects.filter(name=name).first()
    if experiment is None:
        raise Experiment.DoesNotExist(f"there is no experiment '{name}'")
    return experiment
