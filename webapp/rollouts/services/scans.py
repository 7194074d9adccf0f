"""Scanning of finished trajectories.

Ingest adds an empty ``Scan`` for each trajectory that ends, and sends a task after its commit. A sweep over
all scans reads what a scanner has not read in its current version: older trajectories, and those whose task
was lost. Both run in workers, so that neither a transaction of ingest nor a page waits for a rule or for an
expression of a person.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.db import connection, transaction
from django.db.models import Case, F, TextField, When
from django.db.models.functions import Cast, Left, Length, Right

from engine.errors import TrainyardError
from engine.scanners import patterns
from engine.scanners.rules import RULES, Hit
from engine.scanners.trajectory import MOST_CHARS, ScannedStep, ScannedTrajectory, read_step
from webapp.core.dispatch import TaskName, send
from webapp.core.services import notifications
from webapp.rollouts.models.scans import PatternScanner, Scan
from webapp.rollouts.models.trajectories import Step, Trajectory
from webapp.rollouts.selectors import scans as reads

BATCH = 50
"""Trajectories of one task of the sweep."""
MOST_SHOWN = 20
"""Hits of one scanner in one trajectory that are stored; all are counted."""
_MOST_STEPS = 2_000
"""First steps of a trajectory that are read."""
_ARGUMENT_CHARS = 1_000_000
"""Largest arguments that are read, as JSON; a step with larger ones is read without them."""
_WITH_REPOSITORY = ("swe", "reproduction")
"""Types of environments whose actions the shipped scanners understand."""
_LOCK = 0x5CA9
"""Key of the advisory lock of the sweep."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _InUse:
    """Scanners in use; an expression that takes too long leaves them."""

    versions: dict[str, int]
    entered: list[PatternScanner]

    @classmethod
    def load(cls) -> _InUse:
        entered = PatternScanner.objects.filter(removed=False, problem="")
        return cls(reads.current_versions(), list(entered))

    def stop(self, scanner: PatternScanner, problem: str) -> None:
        """Use an expression no longer, and store the reason."""
        log.warning("scanner %s is no longer used: %s", scanner.name, problem)
        same = PatternScanner.objects.filter(pk=scanner.pk, version=scanner.version)
        same.update(problem=problem[:1_000])
        self.entered.remove(scanner)
        del self.versions[scanner.name]


def scan(*, trajectory_ids: Iterable[int]) -> int:
    """Scan trajectories that have a ``Scan``, and store their hits; return how many were scanned.

    One that cannot be read is logged and stays to be scanned.
    """
    in_use = _InUse.load()
    scanned: list[Trajectory] = []
    for pk in trajectory_ids:
        try:
            row = _scan_one(pk, in_use)
        except Exception:  # models and sandboxes determine the steps: none may hold up the others
            log.exception("trajectory %d cannot be scanned", pk)
            continue
        if row is not None:
            scanned.append(row)
    _notify(scanned)
    return len(scanned)


@transaction.atomic
def scan_past(*, before: int | None = None) -> int | None:
    """Scan the newest trajectories that a scanner has not read yet.

    Args:
        before: only trajectories with a lower number; None for all.

    Returns:
        The lowest number of this batch, with which to continue; None if nothing is left, or if another
        process is scanning.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        if not cursor.fetchone()[0]:
            return None
    rows = reads.pending(reads.current_versions())
    if before is not None:
        rows = rows.filter(pk__lt=before)
    ids = list(rows.order_by("-pk").values_list("pk", flat=True)[:BATCH])
    scan(trajectory_ids=ids)
    return ids[-1] if ids else None


def sweep(before: int | None = None) -> None:
    """Scan one batch of the past and send the task of the next."""
    following = scan_past(before=before)
    if following is not None:
        send(TaskName.SCAN_PAST, following)


@transaction.atomic
def _scan_one(pk: int, in_use: _InUse) -> Trajectory | None:
    # The lock keeps a later attempt, which removes the scan, from replacing the steps while they are read.
    stored = Scan.objects.select_for_update().filter(pk=pk).first()
    if stored is None:
        return None
    rows = Trajectory.objects.select_related("run").defer("test_log", "detail", "error", "findings")
    row = rows.get(pk=pk)
    view = _view(row)
    found: dict[str, list[Hit]] = {}
    if _kind(row) in _WITH_REPOSITORY:
        found = {name: list(islice(rule.scan(view), _MOST_STEPS)) for name, rule in RULES.items()}
    for scanner in tuple(in_use.entered):
        try:
            found[scanner.name] = patterns.scan(scanner.pattern, _texts(view.steps, scanner.place))
        except TrainyardError as error:
            in_use.stop(scanner, f"{error} (trajectory {pk})")
    stored.versions = in_use.versions
    stored.hits = {
        name: {"count": len(listed), "first": [[hit.step, hit.detail] for hit in listed[:MOST_SHOWN]]}
        for name, listed in found.items()
        if listed
    }
    stored.found = sorted(stored.hits)
    stored.save(update_fields=["versions", "found", "hits"])
    return row


def _kind(row: Trajectory) -> str:
    return str(row.run.config.get("environment", {}).get("type", "swe"))


def _view(row: Trajectory) -> ScannedTrajectory:
    is_unknown = _kind(row) != "swe" or (row.run.is_imported and not row.patch)
    return ScannedTrajectory(
        _steps(row.pk), termination=row.termination, patch=None if is_unknown else row.patch
    )


def _steps(trajectory_id: int) -> list[ScannedStep]:
    """Read the steps with bounded texts; the database cuts them."""
    half = MOST_CHARS // 2
    rows = (
        Step.objects.filter(trajectory_id=trajectory_id)
        .annotate(
            argument_chars=Length(Cast("arguments", TextField())),
            head=Left("observation", half),
            tail=Right("observation", half),
            chars=Length("observation"),
        )
        .annotate(
            values=Case(When(argument_chars__lte=_ARGUMENT_CHARS, then=F("arguments"))),
            cut_thought=Left("thought", MOST_CHARS),
            cut_error=Left("error", 200),
        )
        .order_by("index")
        .values_list(
            "index", "tool", "values", "cut_thought", "head", "tail", "chars", "cut_error", "exit_code"
        )
    )
    return [
        read_step(
            index=index, tool=tool, arguments=values, thought=thought, error=error, exit_code=exit_code,
            observation=head if chars <= half else f"{head}{tail[max(0, 2 * half - chars):]}",
        )
        for index, tool, values, thought, head, tail, chars, error, exit_code in rows[:_MOST_STEPS].iterator(
            chunk_size=20
        )
    ]  # fmt: skip


def _texts(steps: Sequence[ScannedStep], place: str) -> list[tuple[int, str]]:
    attribute = {"thoughts": "thought", "actions": "action", "observations": "observation"}[place]
    return [(step.index, getattr(step, attribute)) for step in steps]


def _notify(scanned: Iterable[Trajectory]) -> None:
    """Notify the pages that show the hits of these trajectories."""
    by_run: dict[int, list[Trajectory]] = defaultdict(list)
    for row in scanned:
        by_run[row.run_id].append(row)
    for run_id, rows in by_run.items():
        seq = rows[0].run.last_seq
        named: list[Any] = [[row.phase, row.iteration, row.task_key, row.index] for row in rows]
        changes = {"after": seq, "areas": ["scans"], "groups": [], "rollouts": named}
        notifications.run_changed(run_id, seq, changes)
