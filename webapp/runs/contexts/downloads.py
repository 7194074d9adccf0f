"""Downloads of what a run left in its folder."""

from __future__ import annotations

from django.http import StreamingHttpResponse

from webapp.core.streaming import in_threads, zipped_files
from webapp.runs.models.runs import Run
from webapp.runs.selectors.checkpoints import StoredCheckpoint


def checkpoint_download(run: Run, found: StoredCheckpoint) -> StreamingHttpResponse:
    """Return a checkpoint as a ZIP archive that is made while it is sent."""
    name = f"run-{run.pk}-checkpoint-{found.iteration:05d}"
    archive = in_threads(zipped_files(name, found.files()))
    response = StreamingHttpResponse(archive, content_type="application/zip")
    response["Content-Disposition"] = f'attachment; filename="{name}.zip"'
    return response
