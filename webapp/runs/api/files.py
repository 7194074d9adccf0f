"""List and download of the files in run folders."""

from __future__ import annotations

from datetime import datetime

from django.http import HttpRequest, StreamingHttpResponse
from ninja import Router, Schema
from ninja.errors import HttpError

from webapp.api.auth import caller, operator
from webapp.core.services import audit
from webapp.runs.api.runs import find
from webapp.runs.contexts.downloads import file_download
from webapp.runs.selectors.files import RunFiles, list_files, open_file

router = Router(tags=["runs"])


class RunFileOut(Schema):
    """A file in the run folder."""

    name: str
    """Path below the folder."""
    kind: str
    size: int
    """Bytes."""
    changed_at: datetime


class RunFilesOut(Schema):
    """The first 1,000 files of a run folder, checkpoints last; number and bytes of all."""

    files: list[RunFileOut]
    total: int
    total_size: int
    complete: bool
    """False if the folder has too many entries to count them all."""


@router.get("/runs/{int:run_id}/files", auth=operator, response=RunFilesOut)
def get_files(request: HttpRequest, run_id: int) -> RunFiles:
    """List the files of a run."""
    return list_files(find(run_id).pk)


@router.get("/runs/{int:run_id}/files/{path:name}", auth=operator)
def download_file(request: HttpRequest, run_id: int, name: str) -> StreamingHttpResponse:
    """Return a file of a run; secrets are removed from logs."""
    opened = open_file(find(run_id).pk, name)
    if opened is None:
        raise HttpError(404, f"run {run_id} has no such file")
    audit.record(actor=caller(request), action="file.export", run_id=run_id, target=f"file {name}"[:200])
    return file_download(*opened)
