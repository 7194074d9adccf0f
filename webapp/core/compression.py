"""Compression of responses."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponseBase
from django.middleware.gzip import GZipMiddleware


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
