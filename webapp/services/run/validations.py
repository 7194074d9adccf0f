"""Start of dataset validations by the page, the API and the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from webapp.models import Run
from webapp.services.dataset import datasets
from webapp.services.run import runs

RECIPE = "validate-dataset"


@transaction.atomic
def launch(
    *,
    name: str,
    repeats: int | None = None,
    splits: Sequence[str] = (),
    rows: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    actor: User | None = None,
) -> Run:
    """Create and queue a run of kind ``validate`` that validates a dataset.

    Args:
        name: the dataset.
        repeats: gradings of each row without a patch, and as many with its gold patch; None: the default.
        splits: splits to validate; empty: every split.
        rows: ``all``, ``unvalidated`` or ``suspect``; None: all.
        overrides: further settings by dotted name.
        actor: who asked.

    Raises:
        ConfigError: an invalid setting.
        DatasetError: the dataset does not exist.
    """
    datasets.sync(name=name, actor=actor)
    settings: dict[str, Any] = {"name": f"validate {name}"[:200], "dataset.name": name}
    if repeats is not None:
        settings["validation.repeats"] = repeats
    if splits:
        settings["dataset.splits"] = list(splits)
    if rows is not None:
        settings["validation.rows"] = rows
    run = runs.create(recipe=RECIPE, overrides=settings | dict(overrides or {}), actor=actor)
    runs.start(run=run, actor=actor)
    return run
