"""Middleware of a vLLM server: every route but the health check needs the server's key.

vLLM's own check leaves its development routes and its metrics open. Loaded inside the server's process: only
the standard library is imported.
"""

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

_OPEN = frozenset({"/health"})
_Scope = MutableMapping[str, Any]
_Application = Callable[[_Scope, Any, Any], Awaitable[None]]


class RequireKey:
    """ASGI middleware that compares the bearer token with ``VLLM_API_KEY``."""

    def __init__(self, app: _Application) -> None:
        self._app = app
        self._expected = f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(self, scope: _Scope, receive: Any, send: Any) -> None:
        """Pass an authorized request on; answer others with 401."""
        if scope["type"] == "lifespan" or scope.get("path") in _OPEN or self._is_authorized(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"the server's key is missing or wrong"})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _is_authorized(self, scope: _Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, self._expected)
