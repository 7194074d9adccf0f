"""Downloads of files in run folders."""

from __future__ import annotations

from django.http import StreamingHttpResponse

from webapp.core.streaming import in_threads, zipped_files
from webapp.runs.models.runs import Run
from webapp.runs.selectors.checkpoints import StoredCheckpoint


def checkpoint_download(run: Run, checkpoint: StoredCheckpoint) -> StreamingHttpResponse:
    """Return a checkpoint as a streamed ZIP archive."""
    name = f"run-{run.pk}-checkpoint-{checkpoint.iteration:05d}"
    archive = in_threads(zipped_files(name, checkpoint.files()))
    response = StreamingHttpResponse(archive, content_type="application/zip")
    response["Content-Disposition"] = f'attachment; filename="{name}.zip"'
    return response
