"""Changes of several runs at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from engine.errors import ConfigError
from webapp.runs.models.runs import Run
from webapp.runs.services import edits, runs


def _tag(*, run: Run, tag: str, actor: User | None) -> None:
    edits.edit(run=run, changes=edits.Edit(add_tag=tag), actor=actor)


CHANGES: Mapping[str, Callable[..., None]] = MappingProxyType(
    {"stop": runs.stop, "archive": edits.archive, "restore": edits.restore, "tag": _tag}
)
"""Changes that several runs may have together."""


def change(*, run: Run, action: str, tag: str = "", actor: User | None = None) -> None:
    """Change one run of several.

    Args:
        run: the run.
        action: one of ``CHANGES``.
        tag: the tag to add.
        actor: the requesting user.

    Raises:
        ConfigError: there is no such action, or the text is no tag or one too many.
        IllegalTransitionError: the run's state does not allow it.
    """
    if action not in CHANGES:
        raise ConfigError(f"there is no action '{action[:40]}', only {', '.join(CHANGES)}")
    given: dict[str, Any] = {"tag": tag} if action == "tag" else {}
    CHANGES[action](run=run, actor=actor, **given)


@transaction.atomic
def change_all(*, batch: Collection[Run], action: str, tag: str = "", actor: User | None = None) -> None:
    """Change every run, or none where one refuses. Raises as ``change``."""
    for run in batch:
        change(run=run, action=action, tag=tag, actor=actor)
