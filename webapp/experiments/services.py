"""Experiments: named sets of runs."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction

from engine.errors import ConfigError
from webapp.core.services import audit
from webapp.experiments.models import Experiment


@transaction.atomic
def create(*, name: str, description: str = "", actor: User | None = None) -> Experiment:
    """Create an experiment. Raises ConfigError if the name is empty or taken."""
    name = name.strip()
    if not 0 < len(name) <= 200 or Experiment.objects.filter(name=name).exists():
        raise ConfigError(f"the experiment name '{name[:200]}' is empty, too long or taken")
    experiment = Experiment.objects.create(name=name, description=description, created_by=actor)
    audit.record(actor=actor, action="experiment.create", target=f"experiment {name}")
    return experiment
