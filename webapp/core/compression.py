"""Compression of responses."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponseBase
from django.middleware.gzip import GZipMiddleware


class CompressionMiddleware(GZipMiddleware):
    """Middleware that compresses responses with gzip, except archives.

    Compressed lengths reveal a secret to an attacker who can insert guesses beside it and measure many
    responses (BREACH). Three measures prevent this. Session cookies are ``SameSite=Lax``, so background
    requests from another site are anonymous. Django masks the CSRF token anew in every response. Its
    middleware adds a random number of bytes to every response. Pages contain no other secret, except a new
    API token in a single response. The API sends secrets (keys of endpoints) only for a bearer token, which
    browsers do not store.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Compress a response that is large enough and not an archive."""
        if response.get("Content-Type", "").startswith("application/zip"):
            return response
        return super().process_response(request, response)
