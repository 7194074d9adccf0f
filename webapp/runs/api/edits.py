"""Name, tags, notes, experiment, archiving and acknowledgement of runs."""

from __future__ import annotations

from django.http import HttpRequest
from ninja import Router, Schema

from webapp.api.auth import caller, operator, role_of_caller
from webapp.runs.api.runs import RunOut, find, find_to_change
from webapp.runs.models.runs import Run
from webapp.runs.services import edits

router = Router(tags=["runs"])


class EditIn(Schema):
    """Changes to a run; null and missing fields stay unchanged."""

    name: str | None = None
    tags: list[str] | None = None
    notes: str | None = None
    experiment: str | None = None
    """Name of an experiment, created if it does not exist; empty removes the run from its experiment."""
    baseline: str | None = None
    """``experiment`` or ``all`` pins the run as the baseline of these runs; empty unpins it."""
    version: str | None = None
    """``edit_version`` of the run as it was read: 409 if it was edited since; null overwrites."""


@router.post("/runs/{int:run_id}/edit", auth=operator, response=RunOut)
def edit_run(request: HttpRequest, run_id: int, body: EditIn) -> Run:
    """Rename, tag, annotate or file a run."""
    run = find_to_change(request, run_id)
    changes, role = edits.Edit(**body.model_dump()), role_of_caller(request)
    edits.edit(run=run, changes=changes, actor=caller(request), role=role)
    return find(run_id)


@router.post("/runs/{int:run_id}/archive", auth=operator, response=RunOut)
def archive_run(request: HttpRequest, run_id: int) -> Run:
    """Archive a draft or an ended run: lists leave it out."""
    run = find_to_change(request, run_id)
    edits.archive(run=run, actor=caller(request))
    return run


@router.post("/runs/{int:run_id}/restore", auth=operator, response=RunOut)
def restore_run(request: HttpRequest, run_id: int) -> Run:
    """Return an archived run to the lists."""
    run = find_to_change(request, run_id)
    edits.restore(run=run, actor=caller(request))
    return run


@router.post("/runs/{int:run_id}/acknowledge", auth=operator, response=RunOut)
def acknowledge_run(request: HttpRequest, run_id: int) -> Run:
    """Acknowledge the failure of a run, which then needs no attention."""
    run = find_to_change(request, run_id)
    edits.acknowledge(run=run, actor=caller(request))
    return run
