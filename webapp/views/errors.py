"""Error pages: what happened and what to do."""

from __future__ import annotations

import sys

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render

from webapp.contexts.outages import current_outages
from webapp.selectors.outages import is_connection_lost

RETRY_AFTER_S = 2


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001
    """400."""
    return render(request, "errors/400.html", status=400)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """403, with the role that is needed."""
    return render(request, "errors/403.html", {"reason": str(exception)}, status=403)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """404; the reason is shown only where a view gave one."""
    argument = exception.args[0] if exception.args else ""
    reason = argument if isinstance(argument, str) else ""
    return render(request, "errors/404.html", {"reason": reason}, status=404)


def server_error(request: HttpRequest) -> HttpResponse:
    """500, or 503 for a lost database; rendered without any query, so that it works without one."""
    error = sys.exc_info()[1]
    if error is not None and is_connection_lost(error):
        return service_unavailable(request)
    return render(request, "errors/500.html", {"crumbs": ()}, status=500)


def service_unavailable(request: HttpRequest) -> HttpResponse:
    """503: the database does not answer. People get a page that reloads by itself, programs JSON."""
    response: HttpResponse
    if request.path.startswith("/api/"):
        response = JsonResponse(
            {"detail": "The database does not answer. Send the request again."}, status=503
        )
    else:
        outages = [outage for outage in current_outages() if outage.name == "postgresql"]
        response = render(request, "errors/503.html", {"outages": outages}, status=503)
    response["Retry-After"] = str(RETRY_AFTER_S)
    response["Cache-Control"] = "no-store"
    return response
