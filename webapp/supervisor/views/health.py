"""State of the services: ``/healthz`` for load balancers and people, a banner for pages.

Both are public, so that they work without sessions while the database is down; without a role only names,
states and times are shown.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from webapp.core.permissions import person_of
from webapp.supervisor.contexts import current_outages
from webapp.supervisor.selectors import DATABASE, service_statuses
from webapp.supervisor.status import ServiceState, ServiceStatus


@never_cache
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """Return the state of every service as JSON, with status 503 if the database is down."""
    statuses = service_statuses()
    down = {status.name for status in statuses if status.state is ServiceState.DOWN}
    detailed = DATABASE not in down and person_of(request.user) is not None
    return JsonResponse(
        {
            "status": "down" if DATABASE in down else "degraded" if down else "ok",
            "services": [_row(status, detailed=detailed) for status in statuses],
        },
        status=503 if DATABASE in down else 200,
    )


def _row(status: ServiceStatus, *, detailed: bool) -> dict[str, Any]:
    since = datetime.fromtimestamp(status.since, tz=UTC).isoformat(timespec="seconds")
    row = {"name": status.name, "state": status.state.value, "since": since}
    return row | {"restarts": status.restarts, "last_reason": status.reason} if detailed else row


@never_cache
@require_safe
def outage_banner(request: HttpRequest) -> HttpResponse:
    """Render the banner about services that are down, which every page polls."""
    return render(request, "core/_outages.html", {"outages": current_outages()})
