"""List and download of the existing checkpoints of runs."""

from __future__ import annotations

from datetime import datetime

from django.http import HttpRequest, StreamingHttpResponse
from ninja import Router, Schema
from ninja.errors import HttpError

from webapp.api.auth import caller, operator, viewer
from webapp.core.services import audit
from webapp.runs.api.runs import find
from webapp.runs.contexts.downloads import checkpoint_download
from webapp.runs.selectors.checkpoints import KnownCheckpoint, find_checkpoint, find_known, stored_checkpoints

router = Router(tags=["runs"])


class CheckpointOut(Schema):
    """A checkpoint in the run folder."""

    iteration: int
    policy_version: int
    saved_at: datetime
    checksum: str
    size: int
    """Bytes."""


class KnownCheckpointOut(Schema):
    """A checkpoint that a new run can start from."""

    run_id: int
    run_name: str
    iteration: int
    """Iterations completed before it."""
    saved_at: datetime
    reference: str
    """Value of settings that name a checkpoint, such as ``policy.checkpoint``."""
    solve_rate: float | None
    """Held-out solve rate at that iteration; null where it was not measured."""
    is_last: bool
    """Whether it is the newest of its run, which ``run:ID`` names too."""


@router.get("/checkpoints", auth=viewer, response=list[KnownCheckpointOut])
def list_known_checkpoints(request: HttpRequest, q: str = "") -> list[KnownCheckpoint]:
    """List the newest checkpoints that exist, of runs that are not archived.

    ``q`` has words of run names, run numbers or references; all must occur.
    """
    return find_known(q)


@router.get("/runs/{int:run_id}/checkpoints", auth=viewer, response=list[CheckpointOut])
def list_checkpoints(request: HttpRequest, run_id: int) -> list[CheckpointOut]:
    """List the checkpoints that exist, newest first."""
    checkpoints, _ = stored_checkpoints(find(run_id))
    return [
        CheckpointOut(
            iteration=stored.iteration,
            policy_version=stored.checkpoint.policy_version,
            saved_at=stored.checkpoint.saved_at,
            checksum=stored.checkpoint.checksum,
            size=stored.size,
        )
        for stored in checkpoints
    ]


@router.get("/runs/{int:run_id}/checkpoints/{int:iteration}", auth=operator)
def download_checkpoint(request: HttpRequest, run_id: int, iteration: int) -> StreamingHttpResponse:
    """Return a checkpoint as a ZIP archive."""
    run = find(run_id)
    checkpoint = find_checkpoint(run, iteration)
    if checkpoint is None:
        raise HttpError(404, f"run {run_id} has no checkpoint {iteration}")
    audit.record(
        actor=caller(request), action="checkpoint.export", run_id=run.pk, target=f"checkpoint {iteration}"
    )
    return checkpoint_download(run, checkpoint)
