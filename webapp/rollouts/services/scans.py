"""Scanning of finished trajectories.

Ingest adds an empty ``Scan`` for each trajectory that ends, and sends a task after its commit. The task scans
what has not been scanned since a scanner changed, for a few seconds, and sends itself again while there is
more. Nothing is locked while a rule or an expression of a person reads.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Case, F, TextField, When
from django.db.models.functions import Cast, Left, Length, Right

from engine.errors import SlowInputError, TrainyardError
from engine.scanners import patterns
from engine.scanners.purposes import PURPOSES, Thinking, thinking_by_purpose
from engine.scanners.rules import RULES, Hit
from engine.scanners.trajectory import MOST_CHARS, ScannedStep, ScannedTrajectory, read_step
from webapp.core.dispatch import TaskName, send_on_commit
from webapp.core.services import notifications
from webapp.core.services.locks import alone
from webapp.rollouts.models.scans import EnteredScanner, Scan
from webapp.rollouts.models.trajectories import Step, Trajectory
from webapp.rollouts.selectors import scans as reads
from webapp.runs.models.iterations import Iteration

BATCH = 50
"""Most trajectories of one task."""
TASK_S = 2.0
"""Time after which a task begins no further trajectory, seconds."""
EXPRESSIONS_S = 6.0
"""Time after which no further expression searches a trajectory, seconds."""
MOST_SLOW = 3
"""Trajectories that an expression may search for too long; then it is no longer used."""
MOST_SHOWN = 20
"""Hits of one scanner in one trajectory that are stored; all are counted."""
_MOST_STEPS = 2_000
"""First steps of a trajectory that are read."""
_MOST_CHARS = 10_000_000
"""Characters of a trajectory after which no further step is read."""
_ARGUMENT_CHARS = 1_000_000
"""Largest arguments that are read, as JSON; a step with larger ones is read without them."""
LOCK = 0x5CA9
"""Key of the advisory lock of the process that scans or indexes."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _InUse:
    """Scanners in use; an expression that was too slow several times leaves them."""

    fingerprint: str
    versions: dict[str, int]
    entered: list[EnteredScanner]

    @classmethod
    def load(cls) -> _InUse:
        fingerprint = reads.fingerprint()  # before the scanners: one that changes now is scanned again
        entered = list(EnteredScanner.objects.filter(removed=False, problem="", rubric=""))
        versions = {rule.name: rule.version for rule in RULES.values()}
        versions |= {scanner.name: scanner.version for scanner in entered}
        return cls(fingerprint, versions, entered)

    def count_slow(self, scanner: EnteredScanner, problem: str) -> None:
        """Count a search that took too long; after ``MOST_SLOW`` use the expression no longer."""
        same = EnteredScanner.objects.filter(pk=scanner.pk, version=scanner.version)
        same.update(num_slow=F("num_slow") + 1)
        if same.filter(num_slow__gte=MOST_SLOW).update(problem=problem[:1_000]):
            log.warning("scanner %s is no longer used: %s", scanner.name, problem)
            self.entered.remove(scanner)
            del self.versions[scanner.name]


def scan(*, trajectory_ids: Iterable[int], seconds: float = math.inf) -> int:
    """Scan trajectories that have a ``Scan``, and store their hits; return how many were scanned.

    One that cannot be read is logged, and scanned again when a scanner changes.

    Args:
        trajectory_ids: the trajectories.
        seconds: time after which no further trajectory begins.
    """
    in_use, until = _InUse.load(), time.monotonic() + seconds
    scanned: list[Trajectory] = []
    for pk in trajectory_ids:
        row = _scan_one(pk, in_use)
        if row is not None:
            scanned.append(row)
        if time.monotonic() > until:
            break
    notify(scanned)
    _watch(scanned)
    return len(scanned)


def _watch(scanned: Iterable[Trajectory]) -> None:
    """Send the task that compares counters, for runs whose finished iterations have now been scanned.

    Ingest sends it when an iteration ends, which may be before its rollouts are scanned.
    """
    iterations: dict[int, set[int]] = defaultdict(set)
    for row in scanned:
        if row.phase == "train":
            iterations[row.run_id].add(row.iteration)
    for run_id, indices in iterations.items():
        finished = Iteration.objects.filter(run=run_id, index__in=indices, finished_at__isnull=False)
        if finished.exists() and not reads.pending().filter(run=run_id).exists():
            send_on_commit(TaskName.WATCH, run_id)


def scan_pending() -> bool:
    """Scan trajectories that have not been scanned since a scanner changed, for a few seconds.

    Returns:
        Whether there may be more; False also if another process is scanning.
    """
    with alone(LOCK) as is_alone:
        ids = reads.next_pending(BATCH) if is_alone else []
        if ids:
            scan(trajectory_ids=ids, seconds=TASK_S)
    return bool(ids)


def _scan_one(pk: int, in_use: _InUse) -> Trajectory | None:
    """Scan a trajectory; None if it has no ``Scan``, cannot be read, or was replaced meanwhile."""
    rows = Trajectory.objects.select_related("run").defer("test_log", "detail", "error", "findings")
    row = rows.filter(pk=pk, scan__isnull=False).first()
    if row is None:
        return None
    try:
        scanned = view(row)
        found = _found(row, scanned, in_use)
        thinking = thinking_by_purpose(scanned) if reads.has_repository(row.run) else {}
    except (OSError, OperationalError, InterfaceError):  # trouble of this machine: a later task tries again
        raise
    except Exception:  # models and sandboxes determine the steps: none may hold up the others
        log.exception("trajectory %d cannot be scanned", pk)
        _store(row, dict.fromkeys(in_use.versions), {}, in_use)
        return None
    return row if _store(row, found, thinking, in_use) else None


def _found(row: Trajectory, scanned: ScannedTrajectory, in_use: _InUse) -> dict[str, list[Hit] | None]:
    """Return the hits by scanner; None for those that could not read the trajectory."""
    found: dict[str, list[Hit] | None] = {}
    if reads.has_repository(row.run):
        found |= {name: list(islice(rule.scan(scanned), _MOST_STEPS)) for name, rule in RULES.items()}
    until = time.monotonic() + EXPRESSIONS_S
    for scanner in tuple(in_use.entered):
        found[scanner.name] = None
        if time.monotonic() > until:
            log.warning("scanner %s does not read trajectory %d: others took too long", scanner.name, row.pk)
            continue
        try:
            found[scanner.name] = patterns.scan(scanner.pattern, _texts(scanned.steps, scanner.place))
        except SlowInputError as error:
            in_use.count_slow(scanner, f"{error} (trajectory {row.pk})")
        except TrainyardError as error:
            log.warning("scanner %s cannot read trajectory %d: %s", scanner.name, row.pk, error)
    return found


@transaction.atomic
def _store(
    row: Trajectory,
    found: Mapping[str, list[Hit] | None],
    thinking: Mapping[str, Thinking],
    in_use: _InUse,
) -> bool:
    """Store hits and thinking by purpose; return False if a later attempt has replaced the steps."""
    same = {"trajectory__epoch": row.epoch, "trajectory__finished_at": row.finished_at}
    stored = Scan.objects.select_for_update(of=("self",)).filter(pk=row.pk, **same).first()
    if stored is None:
        return False
    stored.fingerprint = in_use.fingerprint
    # ``services.judgements`` stores the hits of rubrics, and may have stored those of a new one meanwhile.
    rubrics = set(
        EnteredScanner.objects.filter(removed=False).exclude(rubric="").values_list("name", flat=True)
    )
    kept = {name: v for name, v in stored.versions.items() if name in rubrics}
    read = {name: v for name, v in in_use.versions.items() if found.get(name, ()) is not None}
    stored.versions = read | kept
    stored.hits = {name: stored_hits(listed) for name, listed in found.items() if listed} | {
        name: hits for name, hits in stored.hits.items() if name in kept
    }
    stored.found = sorted(stored.hits)
    stored.purpose_steps = [thinking[name].steps for name in PURPOSES] if thinking else []
    stored.purpose_thinking = [thinking[name].tokens for name in PURPOSES] if thinking else []
    stored.save(
        update_fields=["fingerprint", "versions", "found", "hits", "purpose_steps", "purpose_thinking"]
    )
    return True


def stored_hits(hits: Sequence[Hit]) -> dict[str, Any]:
    """Return the hits of a scanner as ``Scan.hits`` has them."""
    return {"count": len(hits), "first": [[hit.step, hit.detail] for hit in hits[:MOST_SHOWN]]}


def view(row: Trajectory) -> ScannedTrajectory:
    """Return a trajectory as scanners read it."""
    is_unknown = reads.environment_of(row.run) != "swe" or (row.run.is_imported and not row.patch)
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
            "index",
            "tool",
            "values",
            "cut_thought",
            "head",
            "tail",
            "chars",
            "cut_error",
            "exit_code",
            "thinking_tokens",
        )
    )
    steps: list[ScannedStep] = []
    chars = 0
    with transaction.atomic():  # of the cursor
        for (
            index, tool, values, thought, head, tail, length, error, exit_code, thinking,
        ) in rows[:_MOST_STEPS].iterator(chunk_size=20):  # fmt: skip
            observation = head if length <= half else f"{head}{tail[max(0, 2 * half - length) :]}"
            step = read_step(
                index=index, tool=tool, arguments=values, thought=thought, error=error, exit_code=exit_code,
                observation=observation, thinking_tokens=thinking,
            )  # fmt: skip
            steps.append(step)
            chars += len(step.action) + len(step.thought) + len(step.observation)
            if chars > _MOST_CHARS:
                break
    return steps


def _texts(steps: Sequence[ScannedStep], place: str) -> list[tuple[int, str]]:
    attribute = {"thoughts": "thought", "actions": "action", "observations": "observation"}[place]
    return [(step.index, getattr(step, attribute)) for step in steps]


def notify(scanned: Iterable[Trajectory]) -> None:
    """Notify the pages that show the hits of these trajectories."""
    by_run: dict[int, list[Trajectory]] = defaultdict(list)
    for row in scanned:
        by_run[row.run_id].append(row)
    for run_id, rows in by_run.items():
        seq = rows[0].run.last_seq
        named: list[Any] = [[row.phase, row.iteration, row.task_key, row.index] for row in rows]
        changes = {"after": seq, "areas": ["scans"], "groups": [], "rollouts": named}
        notifications.run_changed(run_id, seq, changes)
