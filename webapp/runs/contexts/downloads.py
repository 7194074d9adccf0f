"""Downloads of files in run folders."""

from __future__ import annotations

from typing import BinaryIO

from django.http import StreamingHttpResponse
from django.utils.http import content_disposition_header

from webapp.core.streaming import in_threads, zipped_files
from webapp.runs.models.runs import Run
from webapp.runs.selectors.checkpoints import StoredCheckpoint
from webapp.runs.selectors.files import RunFile, read_parts


def checkpoint_download(run: Run, checkpoint: StoredCheckpoint) -> StreamingHttpResponse:
    """Return a checkpoint as a streamed ZIP archive."""
    name = f"run-{run.pk}-checkpoint-{checkpoint.iteration:05d}"
    archive = in_threads(zipped_files(name, checkpoint.files()))
    response = StreamingHttpResponse(archive, content_type="application/zip")
    response["Content-Disposition"] = f'attachment; filename="{name}.zip"'
    return response


def file_download(file: RunFile, content: BinaryIO) -> StreamingHttpResponse:
    """Return an opened file of a run folder as a stream, never shown by the browser."""
    response = StreamingHttpResponse(
        in_threads(read_parts(file, content)), content_type="application/octet-stream"
    )
    response["Content-Disposition"] = content_disposition_header(True, file.name.rpartition("/")[2])
    return response
