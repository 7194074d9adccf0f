"""Changes of several runs at once, all or none."""

from __future__ import annotations

from collections.abc import Collection

from django.contrib.auth.models import User
from django.db import transaction

from webapp.runs.models.runs import Run
from webapp.runs.services import edits, runs


@transaction.atomic
def stop_all(*, batch: Collection[Run], actor: User | None = None) -> None:
    """Stop every run. Raises IllegalTransitionError if one has ended; then none is stopped."""
    for run in batch:
        runs.stop(run=run, actor=actor)


@transaction.atomic
def archive_all(*, batch: Collection[Run], actor: User | None = None) -> None:
    """Archive every run. Raises IllegalTransitionError if one is queued or live; then none is archived."""
    for run in batch:
        edits.archive(run=run, actor=actor)


@transaction.atomic
def tag_all(*, batch: Collection[Run], tag: str, actor: User | None = None) -> None:
    """Add a tag to every run. Raises ConfigError if it is no tag or a run has too many; then none changes."""
    for run in batch:
        edits.edit(run=run, changes=edits.Edit(add_tag=tag), actor=actor)
