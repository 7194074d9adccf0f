"""``/metrics`` in the text format of Prometheus."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST

from webapp.accounts.gate import token_viewer
from webapp.core.permissions import Person
from webapp.overview.contexts.metrics import exposition


@token_viewer
def metrics(request: HttpRequest, person: Person) -> HttpResponse:  # noqa: ARG001  (every viewer may read)
    """Render the current metrics of ``webapp.overview.contexts.metrics``."""
    return HttpResponse(exposition(), content_type=CONTENT_TYPE_LATEST)
