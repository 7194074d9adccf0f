"""Scans of rollouts with rubrics: what a model is asked, and what its answers become.

The workers ask (``workers.judging``), some rollouts at a time. A scan asks about at most as many rollouts as
its person allowed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from engine.errors import ConfigError
from engine.scanners.rubrics import Question, question, read_answer
from engine.scanners.rules import Hit
from webapp.core.dispatch import TaskName, send_on_commit
from webapp.core.services import audit
from webapp.endpoints.models import Endpoint
from webapp.endpoints.selectors import get_endpoint
from webapp.endpoints.services import endpoints
from webapp.rollouts.models.judgements import Judgement
from webapp.rollouts.models.scans import EnteredScanner, Scan
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors.scans import MOST_JUDGED
from webapp.rollouts.services import scans
from webapp.runs.models.runs import Run

BATCH = 8
"""Rollouts that are asked about at once."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Questions that are counted as asked."""

    judgement: Judgement
    endpoint: Endpoint
    key: str
    rows: list[Trajectory]
    questions: list[Question]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A model's reply to one question; the text is hostile."""

    text: str
    problem: str
    prompt_tokens: int
    generated_tokens: int


def usable_endpoint(name: str, model: str) -> Endpoint:
    """Return the endpoint of a rubric. Raises ConfigError if it is missing or excludes the model."""
    endpoint = get_endpoint(name)
    if endpoint is None:
        raise ConfigError(f"endpoint: there is no endpoint '{name[:64]}'")
    if not model or not endpoints.allows(endpoint, model):
        raise ConfigError(f"model: '{model[:80]}' is no model that may be used from endpoint '{name}'")
    return endpoint


@transaction.atomic
def start(*, scanner: EnteredScanner, run: Run, most: int, actor: User | None = None) -> Judgement:
    """Start a scan of the newest rollouts of a run that this version of the rubric has not judged.

    Raises:
        ConfigError: it is no rubric, its endpoint cannot be used, the number is not valid, or the last such
            scan has not ended.
    """
    if not scanner.rubric:
        raise ConfigError(f"scanner {scanner.name} has no rubric: it scans by itself")
    if not 1 <= most <= MOST_JUDGED:
        raise ConfigError(f"most: expected 1 to {MOST_JUDGED} rollouts, not {most}")
    usable_endpoint(scanner.endpoint, scanner.model)
    EnteredScanner.objects.select_for_update().get(pk=scanner.pk)  # one start at a time
    if Judgement.objects.filter(scanner=scanner, run=run, finished_at=None).exists():
        raise ConfigError(f"run {run.pk} is being scanned with {scanner.name}: wait, or stop that scan")
    judgement = Judgement.objects.create(
        scanner=scanner, version=scanner.version, run=run, most=most, before=2**63 - 1, started_by=actor
    )
    changes = {"scanner": scanner.name, "version": scanner.version, "most": most}
    audit.record(
        actor=actor, action="scanner.ask", run_id=run.pk, target=f"scan {judgement.pk}", changes=changes
    )
    send_on_commit(TaskName.JUDGE)
    return judgement


@transaction.atomic
def stop(*, judgement: Judgement, actor: User | None = None) -> None:
    """End a scan after the questions in flight; one that has ended is left as it is."""
    if end(judgement, "stopped"):
        audit.record(
            actor=actor, action="scanner.stop", run_id=judgement.run_id, target=f"scan {judgement.pk}"
        )


def end(judgement: Judgement, problem: str = "") -> bool:
    """End a scan; return False if it had ended."""
    values = {"finished_at": timezone.now()} | ({"problem": problem[:1_000]} if problem else {})
    return bool(_unfinished(judgement).update(**values))


def next_batch() -> Batch | None:
    """Return the next questions of the oldest scan, counted as asked; None without any."""
    unfinished = Judgement.objects.filter(finished_at=None).select_related("scanner").order_by("pk")
    while judgement := unfinished.first():
        scanner = judgement.scanner
        if scanner.removed or scanner.version != judgement.version:
            end(judgement, "the scanner was removed or changed")
            continue
        try:
            endpoint = usable_endpoint(scanner.endpoint, scanner.model)
            key = endpoints.key_of(endpoint)
        except ConfigError as error:
            end(judgement, str(error))
            continue
        rows = _claim(judgement)
        if not rows:
            end(judgement)
            continue
        asked = [(row, about) for row in rows if (about := _question(scanner.rubric, row)) is not None]
        if len(asked) < len(rows):
            _unfinished(judgement).update(problem="a rollout cannot be read; the log of the workers says why")
        if asked:
            return Batch(
                judgement=judgement,
                endpoint=endpoint,
                key=key,
                rows=[row for row, _ in asked],
                questions=[about for _, about in asked],
            )
    return None


def _question(rubric: str, row: Trajectory) -> Question | None:
    """Return the question about a rollout; None if it cannot be read."""
    statement = row.task.problem_statement if row.task else ""
    try:
        return question(rubric, scans.view(row).steps, statement=statement, patch=row.patch)
    except (OSError, OperationalError, InterfaceError):  # trouble of this machine: a later task tries again
        raise
    except Exception:  # models and sandboxes determine the steps: none may hold up the others
        log.exception("trajectory %d cannot be read for a question", row.pk)
        return None


def _unfinished(judgement: Judgement) -> QuerySet[Judgement]:
    return Judgement.objects.filter(pk=judgement.pk, finished_at=None)


def _claim(judgement: Judgement) -> list[Trajectory]:
    """Return the next rollouts, and count them as asked; none if the scan has ended meanwhile."""
    size = min(BATCH, judgement.most - judgement.asked)
    unread = Scan.objects.filter(run=judgement.run_id, trajectory_id__lt=judgement.before).exclude(
        versions__contains={judgement.scanner.name: judgement.version}
    )
    ids = list(unread.order_by("-trajectory_id").values_list("pk", flat=True)[:size])
    if not ids:
        return []
    if not _unfinished(judgement).update(before=ids[-1], asked=F("asked") + len(ids)):
        return []
    rows = Trajectory.objects.select_related("run", "task").defer("test_log", "detail", "error", "findings")
    return list(rows.filter(pk__in=ids).order_by("-pk"))


def record(batch: Batch, replies: Sequence[Reply], *, ended: str = "") -> None:
    """Store replies; the scan ends if none of them is an answer of the model.

    Args:
        batch: the questions.
        replies: their replies, in order; fewer where the endpoint was not asked.
        ended: reason why the endpoint answers no question; it ends the scan.
    """
    judged: list[Trajectory] = []
    answered = found = 0
    problem = ended
    for row, asked, reply in zip(batch.rows, batch.questions, replies, strict=False):
        hits = None if reply.problem else read_answer(reply.text, asked.steps)
        if hits is None:
            problem = ended or reply.problem or "an answer is not of the asked form"
        elif _store(batch.judgement, row, hits):
            judged.append(row)
            answered += 1
            found += bool(hits)
    Judgement.objects.filter(pk=batch.judgement.pk).update(
        answered=F("answered") + answered,
        found=F("found") + found,
        prompt_tokens=F("prompt_tokens") + sum(reply.prompt_tokens for reply in replies),
        generated_tokens=F("generated_tokens") + sum(reply.generated_tokens for reply in replies),
    )
    if ended or all(reply.problem for reply in replies):
        end(batch.judgement, problem)
    elif problem:
        _unfinished(batch.judgement).update(problem=problem[:1_000])
    scans.notify(judged)


@transaction.atomic
def _store(judgement: Judgement, row: Trajectory, hits: list[Hit]) -> bool:
    """Store the hits in one trajectory; return False if a later attempt has replaced it."""
    same = {"trajectory__epoch": row.epoch, "trajectory__finished_at": row.finished_at}
    scan = Scan.objects.select_for_update(of=("self",)).filter(pk=row.pk, **same).first()
    if scan is None:
        return False
    name = judgement.scanner.name
    scan.versions[name] = judgement.version
    scan.hits.pop(name, None)
    if hits:
        scan.hits[name] = scans.stored_hits(hits)
    scan.found = sorted(scan.hits)
    scan.save(update_fields=["versions", "found", "hits"])
    return True
