"""Origin check of WebSockets: only the site itself is allowed, by scheme, host and port."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from channels.security.websocket import WebsocketDenier
from django.conf import settings
from django.http.request import split_domain_port, validate_host

Application = Callable[..., Awaitable[Any]]
_PORTS = {"http": 80, "https": 443}
Origin = tuple[str, str, int]
"""Scheme, host, port."""


class SameOrigin:
    """Middleware that denies handshakes of origins other than the site's and ``CSRF_TRUSTED_ORIGINS``."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        """Pass the handshake on or deny it."""
        headers = {name.lower(): value.decode("latin1") for name, value in scope["headers"]}
        origin = parse_origin(headers.get(b"origin", ""))
        if origin is not None and origin in _own_origins(scope, headers):
            return await self._application(scope, receive, send)
        return await WebsocketDenier()(scope, receive, send)


def parse_origin(text: str) -> Origin | None:
    """Parse an ``Origin`` header, with the default port filled in; None if it is not a web origin."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port or _PORTS[parts.scheme]


def _own_origins(scope: dict[str, Any], headers: dict[bytes, str]) -> set[Origin | None]:
    own = {parse_origin(origin) for origin in settings.CSRF_TRUSTED_ORIGINS}
    host = headers.get(b"host", "")
    if validate_host(split_domain_port(host)[0], settings.ALLOWED_HOSTS):
        own.add(parse_origin(f"{'https' if _is_secure(scope, headers) else 'http'}://{host}"))
    return own - {None}


def _is_secure(scope: dict[str, Any], headers: dict[bytes, str]) -> bool:
    if settings.SECURE_PROXY_SSL_HEADER is None:
        return bool(scope.get("scheme") == "wss")
    name, secure = settings.SECURE_PROXY_SSL_HEADER
    header = name.removeprefix("HTTP_").replace("_", "-").lower().encode()
    return headers.get(header, "").split(",")[0].strip() == secure
