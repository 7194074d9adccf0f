"""Start of dataset imports by the page and the API; the command imports without services."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from webapp.models import Run
from webapp.services.run import runs

RECIPE = "import-dataset"


@transaction.atomic
def launch(
    *,
    format: str,
    source: str,
    name: str,
    overrides: Mapping[str, Any] | None = None,
    actor: User | None = None,
) -> Run:
    """Create and queue a run of kind ``import`` that imports a published dataset.

    Args:
        format: format of the rows, see ``engine.config.importing.FORMATS``.
        source: ``hf:OWNER/NAME``, or a path below an import folder.
        name: the dataset to make.
        overrides: further settings by dotted name, e.g. ``importing.limit``.
        actor: who asked.

    Raises:
        ConfigError: an invalid setting, or a source that may not be read.
    """
    chosen: dict[str, Any] = {
        "name": f"import {name}"[:200],
        "importing.format": format,
        "importing.source": source,
        "importing.output": name,
        "importing.decontamination.verified_repositories": False,
    }
    run = runs.create(recipe=RECIPE, overrides=chosen | dict(overrides or {}), actor=actor)
    runs.start(run=run, actor=actor)
    return run
