"""Experiments: named sets of runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from engine.errors import ConfigError, Problem, TrainyardError
from webapp.core.services import audit
from webapp.core.services.cleaning import without_nul
from webapp.experiments.models import MAX_TEXT, Experiment

MOST_ROLLOUTS = 10**12
TEXTS = ("goal", "hypothesis", "conclusion")


class TextsConflictError(TrainyardError):
    """The texts of an experiment were edited after they were read; nothing was changed."""


def version_of(experiment: Experiment) -> str:
    """Return a digest of an experiment's texts and budget, which changes with every edit."""
    content = json.dumps([getattr(experiment, name) for name in (*TEXTS, "max_rollouts")])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


@transaction.atomic
def create(
    *,
    name: str,
    goal: str = "",
    hypothesis: str = "",
    conclusion: str = "",
    max_rollouts: int | None = None,
    actor: User | None = None,
) -> Experiment:
    """Create an experiment.

    Raises ConfigError if the name is empty or taken, a text is too long, or the budget is out of range.
    """
    name = without_nul(name).strip()
    if not 0 < len(name) <= 200 or Experiment.objects.filter(name=name).exists():
        raise ConfigError(Problem(f"the experiment name '{name[:200]}' is empty, too long or taken", "name"))
    texts = _cleaned({"goal": goal, "hypothesis": hypothesis, "conclusion": conclusion})
    budget = _budget(max_rollouts) if max_rollouts is not None else None
    experiment = Experiment.objects.create(name=name, created_by=actor, max_rollouts=budget, **texts)
    audit.record(actor=actor, action="experiment.create", target=f"experiment {name}")
    return experiment


@transaction.atomic
def edit(
    *,
    experiment: Experiment,
    texts: Mapping[str, str | None],
    max_rollouts: int | None = None,
    version: str | None = None,
    actor: User | None = None,
) -> None:
    """Change goal, hypothesis, conclusion or budget.

    Args:
        experiment: the experiment.
        texts: new texts by name; None leaves one as it is.
        max_rollouts: budget of its runs in rollouts; 0 removes it, None leaves it as it is.
        version: ``version_of`` the experiment as it was read; None overwrites later edits.
        actor: the requesting user.

    Raises:
        ConfigError: a text is too long, or the budget is out of range.
        TextsConflictError: texts or budget were edited since ``version``.
    """
    row = Experiment.objects.select_for_update().get(pk=experiment.pk)
    wanted: dict[str, Any] = dict(_cleaned({name: text for name, text in texts.items() if text is not None}))
    if max_rollouts is not None:
        wanted["max_rollouts"] = _budget(max_rollouts)
    changes = {
        name: {"old": getattr(row, name), "new": text}
        for name, text in wanted.items()
        if getattr(row, name) != text
    }
    # An edit without effect cannot conflict.
    if changes and version not in (None, version_of(row)):
        raise TextsConflictError(
            f"the texts of experiment {row.name} were edited after they were read: nothing was changed; read "
            "them again and repeat the change"
        )
    if changes:
        Experiment.objects.filter(pk=row.pk).update(**wanted)
        audit.record(actor=actor, action="experiment.edit", target=f"experiment {row.name}", changes=changes)
    experiment.refresh_from_db()


@transaction.atomic
def delete(*, experiment: Experiment, actor: User | None = None) -> None:
    """Delete an experiment; its runs are kept without it."""
    audit.record(actor=actor, action="experiment.delete", target=f"experiment {experiment.name}")
    experiment.runs.filter(baseline_of="experiment").update(baseline_of="")
    experiment.delete()


def _budget(max_rollouts: int) -> int | None:
    """Return the column of a budget, None for 0. Raises ConfigError."""
    if not 0 <= max_rollouts <= MOST_ROLLOUTS:
        raise ConfigError(
            Problem(f"0 to {MOST_ROLLOUTS:,} rollouts are allowed, not {max_rollouts:,}", "max_rollouts")
        )
    return max_rollouts or None


def _cleaned(texts: Mapping[str, str]) -> dict[str, str]:
    cleaned = {name: without_nul(text).replace("\r\n", "\n").strip() for name, text in texts.items()}
    problems = [
        Problem(f"at most {MAX_TEXT:,} characters are allowed, not {len(text):,}", name)
        for name, text in cleaned.items()
        if len(text) > MAX_TEXT
    ]
    if problems:
        raise ConfigError(*problems)
    return cleaned
