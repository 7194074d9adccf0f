"""Experiments: named sets of runs."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction

from engine.errors import ConfigError
from webapp.models import Experiment, Run
from webapp.services.access import audit


@transaction.atomic
def create(*, name: str, description: str = "", actor: User | None = None) -> Experiment:
    """Create an experiment. Raises ConfigError if the name is empty or taken."""
    name = name.strip()
    if not 0 < len(name) <= 200 or Experiment.objects.filter(name=name).exists():
        raise ConfigError(f"the experiment name '{name[:200]}' is empty, too long or taken")
    experiment = Experiment.objects.create(name=name, description=description, created_by=actor)
    audit.record(actor=actor, action="experiment.create", target=f"experiment {name}")
    return experiment


@transaction.atomic
def assign(*, run: Run, experiment: Experiment | None, actor: User | None = None) -> None:
    """Assign a run to an experiment, or remove it from one."""
    run.experiment = experiment
    run.save(update_fields=["experiment"])
    audit.record(
        actor=actor, action="run.experiment", run_id=run.pk,
        changes={"experiment": experiment.name if experiment is not None else None},
    )  # fmt: skip
