"""Launch of the runs that import, validate and harden datasets, for pages, API and commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from engine.errors import DatasetError
from webapp.datasets.models.datasets import Dataset
from webapp.datasets.services import datasets
from webapp.runs.models.runs import Run
from webapp.runs.services import runs


@transaction.atomic
def launch_import(
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
        actor: the requesting user.

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
    run = runs.create(recipe="import-dataset", overrides=chosen | dict(overrides or {}), actor=actor)
    runs.start(run=run, actor=actor)
    return run


@transaction.atomic
def launch_validation(
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
        actor: the requesting user.

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
    run = runs.create(recipe="validate-dataset", overrides=settings | dict(overrides or {}), actor=actor)
    runs.start(run=run, actor=actor)
    return run


@transaction.atomic
def launch_hardening(
    *, name: str, output: str, overrides: Mapping[str, Any] | None = None, actor: User | None = None
) -> Run:
    """Create and queue a run that makes a new version of a dataset, with additional tests for weak tasks.

    Args:
        name: the dataset.
        output: the dataset to make.
        overrides: further settings by dotted name, e.g. ``curation.alternatives_of``.
        actor: the requesting user.

    Raises:
        ConfigError: an invalid setting.
        DatasetError: the dataset does not exist, or the one to make does.
    """
    datasets.sync(name=name, actor=actor)
    if Dataset.objects.filter(name=output).exists():
        raise DatasetError(f"there is a dataset '{output}' already: name another one")
    chosen = {"name": f"harden {name}"[:200], "curation.dataset": name, "curation.output": output}
    run = runs.create(recipe="hardened-dataset", overrides=chosen | dict(overrides or {}), actor=actor)
    runs.start(run=run, actor=actor)
    return run
