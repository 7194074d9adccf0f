"""Edits of a run by people: name, tags, notes, experiment, archiving.

Neither configuration nor state of the run changes. An edit with a version is refused if the run was edited
since that version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import connection, transaction
from django.utils import timezone

from engine.errors import ConfigError, Problem, TrainyardError
from engine.types import RunState
from webapp.core.models.audit import AuditEntry
from webapp.core.permissions import Role, check_change
from webapp.core.services import audit, notifications
from webapp.core.services.cleaning import without_nul
from webapp.experiments import services as experiments
from webapp.experiments.models import Experiment
from webapp.runs.models.runs import Run
from webapp.runs.services.states import TERMINAL, refusal

MAX_TAGS = 20
MAX_TAG = 50
MAX_NOTES = 20_000
_OF_EXPERIMENT = Run.Baseline.EXPERIMENT.value
_PINS_LOCK = 1_414_677_850
"""Key of the advisory lock of changes of baselines."""
ARCHIVABLE = frozenset({RunState.DRAFT, *TERMINAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Changes to a run; None leaves a field as it is."""

    name: str | None = None
    tags: Iterable[str] | None = None
    add_tag: str | None = None
    """Tag to add to those that the run has when it is changed."""
    notes: str | None = None
    experiment: str | None = None
    """Name of an experiment, created if missing; empty removes the run from its experiment."""
    baseline: str | None = None
    """``experiment`` pins it as the baseline of its experiment, ``all`` as that of all runs; empty unpins it.
    The run pinned before is unpinned, and so is a run that leaves the experiment it is the baseline of."""
    version: str | None = None
    """``version_of`` the run as it was read; None overwrites later edits."""


class EditConflictError(TrainyardError):
    """The run was edited after it was read; nothing was changed."""

    def __init__(self, run: Run, by: str, at: datetime | None) -> None:
        self.run = run
        """The current run, with the other edit."""
        self.by = by
        self.at = at
        when = f" at {at:%Y-%m-%d %H:%M:%S} UTC" if at is not None else ""
        super().__init__(
            f"run {run.pk} was edited by {by}{when}, after it was read: nothing was changed; read it again "
            "and repeat the change"
        )


def version_of(run: Run) -> str:
    """Return a digest of a run's editable fields, which changes with every edit."""
    content = json.dumps([run.name, run.tags, run.notes, run.experiment_id, run.baseline_of])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


@transaction.atomic
def edit(*, run: Run, changes: Edit, actor: User | None = None, role: Role = Role.ADMIN) -> None:
    """Rename, tag, annotate, file or pin a run.

    Args:
        run: the run.
        changes: the new values.
        actor: user who edits it; None for a command.
        role: the actor's role; only administrators replace other people's baselines of all runs.

    Raises:
        ConfigError: a value is too long or empty, or the run cannot be pinned.
        EditConflictError: the run was edited since ``changes.version``.
        PermissionDenied: the actor may not replace the baseline of all runs.
    """
    wanted: dict[str, Any] = {}
    if changes.name is not None:
        wanted["name"] = _text("name", changes.name, least=1, most=200)
    if changes.tags is not None:
        wanted["tags"] = clean_tags(changes.tags)
    if changes.notes is not None:
        wanted["notes"] = _text("notes", changes.notes.replace("\r\n", "\n"), least=0, most=MAX_NOTES)
    if changes.baseline:
        # Pins are rare: one lock puts all of them in line, before any row is locked.
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_PINS_LOCK])
    row = Run.objects.select_for_update(of=("self",)).select_related("experiment").get(pk=run.pk)
    current = version_of(row)
    if changes.add_tag is not None:
        if not (added := clean_tags([changes.add_tag])):
            raise ConfigError(Problem("name the tag to add", "tags"))
        wanted["tags"] = clean_tags([*wanted.get("tags", row.tags), *added])
    before = {name: getattr(row, name) for name in wanted}
    for name, value in wanted.items():
        setattr(row, name, value)
    if changes.experiment is not None:
        before["experiment"] = row.experiment.name if row.experiment is not None else ""
        wanted["experiment"] = without_nul(changes.experiment).strip()
        row.experiment = _experiment(wanted["experiment"], actor)
    moves = "experiment" in wanted and wanted["experiment"] != before["experiment"]
    if changes.baseline is not None or (moves and row.baseline_of == _OF_EXPERIMENT):
        before["baseline_of"], wanted["baseline_of"] = row.baseline_of, changes.baseline or ""
        # The form sends the pin of the former experiment along.
        leaves = moves or row.experiment is None
        if leaves and row.baseline_of == wanted["baseline_of"] == _OF_EXPERIMENT:
            wanted["baseline_of"] = ""
        row.baseline_of = wanted["baseline_of"]
        _check_baseline(row)
    changed = {
        name: {"old": before[name], "new": value} for name, value in wanted.items() if before[name] != value
    }
    # An edit without effect cannot conflict.
    if changed and changes.version not in (None, current):
        raise _conflict(run.pk)
    if "experiment" in changed:
        row.arm = ""
    if changed:
        if changed.get("baseline_of", {}).get("new"):
            changed["baseline_of"]["replaced"] = _unpin_others(row, actor, role)
        row.save(update_fields=[*changed, "arm"])
        _done(run, actor, "run.edit", changed)


def _check_baseline(run: Run) -> None:
    if run.baseline_of not in ("", *Run.Baseline.values):
        known = ", ".join(Run.Baseline.values)
        raise ConfigError(Problem(f"expected {known} or nothing, not '{run.baseline_of[:40]}'", "baseline"))
    if run.baseline_of == _OF_EXPERIMENT and run.experiment is None:
        raise ConfigError(Problem("the run belongs to no experiment", "baseline"))


def _unpin_others(run: Run, actor: User | None, role: Role) -> list[int]:
    """Unpin the runs that a pinned run replaces; return their numbers. Raises PermissionDenied."""
    others = Run.objects.filter(baseline_of=run.baseline_of).exclude(pk=run.pk)
    if run.baseline_of == _OF_EXPERIMENT:
        others = others.filter(experiment=run.experiment)
    replaced = list(others.select_related("created_by"))
    for other in replaced:
        if run.baseline_of != _OF_EXPERIMENT:
            check_change(other, role, actor.pk if actor is not None else None)
        Run.objects.filter(pk=other.pk).update(baseline_of="")
        unpinned = {"old": run.baseline_of, "new": "", "replaced_by": run.pk}
        _done(other, actor, "run.edit", {"baseline_of": unpinned})
    return [other.pk for other in replaced]


def _conflict(run_id: int) -> EditConflictError:
    last = AuditEntry.objects.filter(run=run_id, action="run.edit").select_related("actor").first()
    by = last.actor.username if last is not None and last.actor is not None else "a command"
    now = Run.objects.select_related("experiment").get(pk=run_id)
    return EditConflictError(now, by, last.time if last is not None else None)


def clean_tags(tags: Iterable[str]) -> list[str]:
    """Return tags with normalised spaces, without empty ones and duplicates, sorted. Raises ConfigError."""
    cleaned = sorted({text for tag in tags if (text := " ".join(without_nul(tag).split()))})
    if len(cleaned) > MAX_TAGS:
        raise ConfigError(Problem(f"a run has at most {MAX_TAGS} tags, not {len(cleaned)}", "tags"))
    if invalid := [tag for tag in cleaned if len(tag) > MAX_TAG or "," in tag]:
        raise ConfigError(
            Problem(f"a tag has 1 to {MAX_TAG} characters and no comma, not '{invalid[0]}'", "tags")
        )
    return cleaned


def _text(name: str, value: str, *, least: int, most: int) -> str:
    value = without_nul(value).strip()
    if not least <= len(value) <= most:
        raise ConfigError(Problem(f"{least} to {most:,} characters are allowed, not {len(value):,}", name))
    return value


def _experiment(name: str, actor: User | None) -> Experiment | None:
    if not name:
        return None
    return Experiment.objects.filter(name=name).first() or experiments.create(name=name, actor=actor)


@transaction.atomic
def archive(*, run: Run, actor: User | None = None) -> None:
    """Archive a run: lists leave it out. Raises IllegalTransitionError while it is queued or live."""
    archivable = Run.objects.filter(pk=run.pk, state__in=ARCHIVABLE)
    if archivable.filter(archived_at=None).update(archived_at=timezone.now(), archived_by=actor):
        _done(run, actor, "run.archive")
    elif not archivable.exists():
        raise refusal(run_id=run.pk, wanted="archived")


@transaction.atomic
def restore(*, run: Run, actor: User | None = None) -> None:
    """Return an archived run to the lists. Raises IllegalTransitionError if it is being deleted."""
    archived = Run.objects.filter(pk=run.pk, archived_at__isnull=False)
    if archived.filter(deleting_at=None).update(archived_at=None, archived_by=None):
        _done(run, actor, "run.restore")
    elif archived.exists():
        raise refusal(run_id=run.pk, wanted="restored")


@transaction.atomic
def acknowledge(*, run: Run, actor: User | None = None) -> None:
    """Acknowledge a failed run; the first acknowledgement is kept. Raises IllegalTransitionError."""
    failed = Run.objects.filter(pk=run.pk, state=RunState.FAILED)
    if failed.filter(acknowledged_at=None).update(acknowledged_at=timezone.now(), acknowledged_by=actor):
        _done(run, actor, "run.acknowledge")
    elif not failed.exists():
        raise refusal(run_id=run.pk, wanted="acknowledged")


def _done(run: Run, actor: User | None, action: str, changes: Mapping[str, Any] | None = None) -> None:
    audit.record_change(actor=actor, action=action, run=run, changes=changes)
    run.refresh_from_db()
    notifications.run_changed(run.pk, run.last_seq)
