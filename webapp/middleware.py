"""Answers with status 503 while the database is down, and compression of responses."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from django.urls import reverse

from webapp.selectors.run.outages import DATABASE, is_connection_lost, monitor, service_statuses
from webapp.supervisor.status import ServiceState
from webapp.views.errors import service_unavailable

Handler = Callable[[HttpRequest], HttpResponseBase]


class OutageMiddleware:
    """Middleware that answers 503 while the database is known to be down, or when a view loses it."""

    def __init__(self, get_response: Handler) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer 503 while the database is known to be down, except for pages that work without it."""
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


class CompressionMiddleware(GZipMiddleware):
    """Middleware that compresses responses with gzip, except archives.

    Compressed lengths tell a secret to an attacker who can put guesses beside it and measure many responses
    (BREACH). Three things are in the way: session cookies are ``SameSite=Lax``, so that requests that another
    site makes in the background are anonymous; Django masks the CSRF token anew in every response; and its
    middleware adds a random number of bytes to every response. Pages contain no other secret, except a new
    API token in one single response, and the API sends one (keys of endpoints) only for a bearer token that
    no browser holds.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Compress a response that is large enough and not an archive."""
        if response.get("Content-Type", "").startswith("application/zip"):
            return response
        return super().process_response(request, response)
