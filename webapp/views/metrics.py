"""``/metrics`` in the text format of Prometheus."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST

from webapp.contexts.metrics import exposition
from webapp.views.access import Person, token_viewer


@token_viewer
def metrics(request: HttpRequest, person: Person) -> HttpResponse:  # noqa: ARG001  (every viewer may read)
    """Render the current metrics of ``webapp.contexts.metrics``."""
    return HttpResponse(exposition(), content_type=CONTENT_TYPE_LATEST)
