"""Scanners, their hits over runs, and those that people enter."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema
from ninja.errors import HttpError

from webapp.api.auth import admin, caller, operator, role_of_caller, viewer
from webapp.core.dispatch import TaskName, send_on_commit
from webapp.core.permissions import check_author, check_rollouts
from webapp.rollouts.models.judgements import Judgement
from webapp.rollouts.selectors import scans as reads
from webapp.rollouts.services import judgements
from webapp.rollouts.services import scanners as writes
from webapp.runs.api.runs import find as find_run
from webapp.runs.models.runs import Run

router = Router(tags=["scanners"])


class ScannerOut(Schema):
    """A scanner, with its share of a run's newest rollouts."""

    name: str
    version: int
    words: str
    shipped: bool
    pattern: str
    """Regular expression; empty for other scanners."""
    place: str
    rubric: str
    """Question to a model; empty for other scanners."""
    endpoint: str
    model: str
    problem: str
    """Reason why it is no longer used; empty if it is used."""
    scanned: int | None
    """Rollouts of the run that its current version has read; null without a run, and where it does not apply:
    shipped scanners to environments without a repository."""
    found: int | None
    """Those with a hit."""
    precision: float | None
    """Against labels ``NAME`` and ``not NAME``, in rollouts; null without such labels."""
    recall: float | None
    step_precision: float | None
    """The same in labelled steps."""
    step_recall: float | None


class ScannerIn(Schema):
    """A regular expression or a rubric as a scanner."""

    pattern: str = ""
    place: str = "thoughts"
    """Texts of steps that the expression searches: ``thoughts``, ``actions`` or ``observations``."""
    rubric: str = ""
    """Question to a model about a rollout, instead of an expression."""
    endpoint: str = ""
    """Name of the endpoint that is asked."""
    model: str = ""
    words: str = ""


class AskIn(Schema):
    """Scan with a rubric."""

    run: int
    most: int = 50
    """Maximum number of rollouts, the newest first."""


class JudgementOut(Schema):
    """Scan of a run's rollouts with a rubric."""

    id: int
    scanner: str
    version: int
    run: int
    most: int
    asked: int
    answered: int
    found: int
    """Rollouts to which the rubric applies."""
    unanswered: int
    """Rollouts without an answer of the asked form."""
    prompt_tokens: int
    generated_tokens: int
    problem: str
    finished: bool


class PendingOut(Schema):
    """Stored trajectories that a scanner has not read yet."""

    pending: int


class BehaviourOut(Schema):
    """Rollouts of an iteration with a hit."""

    phase: str
    iteration: int
    scanner: str
    scanned: int
    found: int


def scanner_records(run: Run | None) -> list[dict[str, Any]]:
    """Return all scanners as ``ScannerOut``."""
    shares = reads.shares([run.pk]).get(run.pk, {}) if run is not None else {}
    agreements = reads.agreements()
    records = []
    for info in reads.scanners():
        is_read = run is not None and reads.applies(info, run)
        share = shares.get(info.name, reads.Share(0, 0)) if is_read else None
        agreement = agreements.get(info.name, reads.Agreements(None, None))
        in_rollouts, in_steps = agreement.trajectories, agreement.steps
        records.append({
            "name": info.name, "version": info.version, "words": info.words, "shipped": info.shipped,
            "pattern": info.pattern, "place": info.place, "problem": info.problem,
            "rubric": info.rubric, "endpoint": info.endpoint, "model": info.model,
            "scanned": share.scanned if share else None, "found": share.found if share else None,
            "precision": in_rollouts.precision if in_rollouts else None,
            "recall": in_rollouts.recall if in_rollouts else None,
            "step_precision": in_steps.precision if in_steps else None,
            "step_recall": in_steps.recall if in_steps else None,
        })  # fmt: skip
    return records


def behaviour_records(run: Run) -> list[dict[str, Any]]:
    """Return a run's hits by phase, iteration and scanner, as ``BehaviourOut``."""
    names = {info.name for info in reads.scanners() if reads.applies(info, run)}
    return [
        {
            "phase": phase,
            "iteration": iteration,
            "scanner": name,
            "scanned": share.scanned,
            "found": share.found,
        }
        for (phase, iteration), shares in sorted(reads.shares_over_time(run.pk).items())
        for name, share in sorted(shares.items())
        if name in names
    ]


@router.get("/scanners", auth=viewer, response=list[ScannerOut])
def list_scanners(request: HttpRequest, run: int | None = None) -> list[dict[str, Any]]:
    """List all scanners; with ``run`` their shares of its newest rollouts."""
    row = None if run is None else find_run(run)
    if row is not None:
        check_rollouts(row, role_of_caller(request))
    return scanner_records(row)


@router.post("/scanners/scan", auth=admin, response={202: PendingOut})
def scan_past(request: HttpRequest) -> tuple[int, dict[str, int]]:
    """Scan stored trajectories that a scanner has not read, now instead of within minutes."""
    send_on_commit(TaskName.SCAN)
    return 202, {"pending": reads.pending().count()}


@router.put("/scanners/{name}", auth=operator, response=ScannerOut)
def save_scanner(request: HttpRequest, name: str, body: ScannerIn) -> dict[str, Any]:
    """Enter a scanner, or change one, which raises its version; stored trajectories are then scanned."""
    user = caller(request)
    if (known := reads.entered_scanner(name)) is not None:
        check_author(known.created_by_id, role_of_caller(request), user.pk)
    writes.save(name=name, actor=user, **body.model_dump())
    return next(record for record in scanner_records(None) if record["name"] == name)


@router.delete("/scanners/{name}", auth=operator, response={204: None})
def remove_scanner(request: HttpRequest, name: str) -> tuple[int, None]:
    """Remove an entered scanner: one's own, or as administrator any."""
    scanner = reads.entered_scanner(name)
    if scanner is None:
        raise HttpError(404, f"there is no entered scanner '{name[:80]}'")
    user = caller(request)
    check_author(scanner.created_by_id, role_of_caller(request), user.pk)
    writes.remove(scanner=scanner, actor=user)
    return 204, None


def judgement_record(judgement: Judgement) -> dict[str, Any]:
    """Return a scan with a rubric as ``JudgementOut``."""
    names = (
        "id", "version", "most", "asked", "answered", "found", "unanswered", "prompt_tokens",
        "generated_tokens", "problem",
    )  # fmt: skip
    return {
        **{name: getattr(judgement, name) for name in names},
        "scanner": judgement.scanner.name,
        "run": judgement.run_id,
        "finished": judgement.finished_at is not None,
    }


@router.get("/judgements", auth=operator, response=list[JudgementOut])
def list_judgements(request: HttpRequest) -> list[dict[str, Any]]:
    """List the newest scans with rubrics."""
    return [judgement_record(judgement) for judgement in reads.judgements()]


@router.post("/scanners/{name}/judge", auth=operator, response={202: JudgementOut})
def judge(request: HttpRequest, name: str, body: AskIn) -> tuple[int, dict[str, Any]]:
    """Ask the model of a rubric about the newest rollouts of a run that it has not judged."""
    scanner = reads.entered_scanner(name)
    if scanner is None:
        raise HttpError(404, f"there is no entered scanner '{name[:80]}'")
    run = find_run(body.run)
    return 202, judgement_record(
        judgements.start(scanner=scanner, run=run, most=body.most, actor=caller(request))
    )


@router.post("/judgements/{int:judgement_id}/stop", auth=operator, response=JudgementOut)
def stop_judgement(request: HttpRequest, judgement_id: int) -> dict[str, Any]:
    """Stop a scan with a rubric: one's own, or as administrator any."""
    judgement = reads.get_judgement(judgement_id)
    if judgement is None:
        raise HttpError(404, f"there is no scan {judgement_id}")
    user = caller(request)
    check_author(judgement.started_by_id, role_of_caller(request), user.pk)
    judgements.stop(judgement=judgement, actor=user)
    judgement.refresh_from_db()
    return judgement_record(judgement)


@router.get("/runs/{int:run_id}/behaviours", auth=viewer, response=list[BehaviourOut])
def list_behaviours(request: HttpRequest, run_id: int) -> list[dict[str, Any]]:
    """Return how many rollouts of each iteration and evaluation have hits, by scanner."""
    run = find_run(run_id)
    check_rollouts(run, role_of_caller(request))
    return behaviour_records(run)
