"""Error pages: what happened and what to do."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render


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
    """500: rendered without any query, so that it works when the database does not."""
    return render(request, "errors/500.html", {"crumbs": ()}, status=500)
