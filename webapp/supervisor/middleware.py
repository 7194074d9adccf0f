"""Middleware that answers 503 while the database is down."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase
from django.urls import reverse

from webapp.supervisor.selectors import DATABASE, is_connection_lost, monitor, service_statuses
from webapp.supervisor.status import ServiceState
from webapp.supervisor.views.errors import service_unavailable

Handler = Callable[[HttpRequest], HttpResponseBase]


class OutageMiddleware:
    """Middleware that answers 503 while the database is known to be down, or when a view loses it."""

    def __init__(self, get_response: Handler) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer 503 while the database is known to be down, except for pages that do not need it."""
        public = (reverse("healthz"), reverse("outage-banner"))
        if request.path not in public and any(
            status.name == DATABASE and status.state is ServiceState.DOWN for status in service_statuses()
        ):
            return service_unavailable(request)
        return self._get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponseBase | None:
        """Return the outage page if the view lost the database connection."""
        if not is_connection_lost(exception):
            return None
        monitor.ask_now()
        return service_unavailable(request)
