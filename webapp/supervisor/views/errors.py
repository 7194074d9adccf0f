"""Error pages, with the cause and the remedy."""

from __future__ import annotations

import sys

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render

from webapp.supervisor.contexts import current_outages
from webapp.supervisor.selectors import is_connection_lost

RETRY_AFTER_S = 2


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001
    """Render status 400."""
    return render(request, "core/errors/400.html", status=400)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Render status 403 with the required role."""
    return render(request, "core/errors/403.html", {"reason": str(exception)}, status=403)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Render status 404 with the view's reason, if it gave one."""
    argument = exception.args[0] if exception.args else ""
    reason = argument if isinstance(argument, str) else ""
    return render(request, "core/errors/404.html", {"reason": reason}, status=404)


def server_error(request: HttpRequest) -> HttpResponse:
    """Render status 500, or 503 for a lost database, without a database query."""
    error = sys.exc_info()[1]
    if error is not None and is_connection_lost(error):
        return service_unavailable(request)
    return render(request, "core/errors/500.html", {"crumbs": ()}, status=500)


def service_unavailable(request: HttpRequest) -> HttpResponse:
    """Render status 503: for browsers a page that reloads itself, for programs JSON."""
    response: HttpResponse
    if request.path.startswith("/api/"):
        response = JsonResponse(
            {"detail": "The database does not answer. Send the request again."}, status=503
        )
    else:
        outages = [outage for outage in current_outages() if outage.name == "postgresql"]
        response = render(request, "core/errors/503.html", {"outages": outages}, status=503)
    response["Retry-After"] = str(RETRY_AFTER_S)
    response["Cache-Control"] = "no-store"
    return response
