"""Request for an endpoint's models, to test its address and key.

Administrators enter the address. Redirects are not followed, so that neither the request nor the key reaches
another address; time and size of the response are limited.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

import httpx
from django.contrib.auth.models import User

from engine.errors import ConfigError
from engine.redaction import redactor
from webapp.core.services import audit
from webapp.endpoints.models import Endpoint
from webapp.endpoints.services import endpoints

TIMEOUT_S = 10.0
"""Maximum time of the whole request, seconds."""
MAX_BYTES = 1 << 20
_EXCERPT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """Answer of an endpoint."""

    models: tuple[str, ...]
    """Listed models that runs may use."""
    num_refused: int
    """Listed models that the endpoint's patterns exclude."""
    error: str
    """Reason for a failure, without secrets; empty after a success."""
    seconds: float


def probe(*, endpoint: Endpoint, actor: User | None = None) -> ProbeResult:
    """Request ``/models`` of an endpoint with its key."""
    started, error, models = time.monotonic(), "", []
    key = ""
    try:
        key = endpoints.key_of(endpoint)
        models = _models(asyncio.run(_fetch(endpoint.address, key)))
    except (ConfigError, httpx.HTTPError, httpx.InvalidURL, ValueError) as failure:
        error = _without(key, str(failure) or type(failure).__name__)
    usable = tuple(model for model in models if endpoints.allows(endpoint, model))
    audit.record(
        actor=actor, action="endpoint.test", target=f"endpoint {endpoint.name}", changes={"error": error}
    )
    return ProbeResult(
        models=tuple(_without(key, model) for model in usable),
        num_refused=len(models) - len(usable),
        error=error,
        seconds=time.monotonic() - started,
    )


async def _fetch(address: str, key: str) -> bytes:
    """Return the body of a successful response. Raises httpx.HTTPError, ValueError."""
    url = f"{address.rstrip('/')}/models"
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    body = b""
    try:
        # The client's own timeout applies to each read: a server that sends single bytes never reaches it.
        async with (
            asyncio.timeout(TIMEOUT_S),
            httpx.AsyncClient(follow_redirects=False, timeout=TIMEOUT_S) as client,
            client.stream("GET", url, headers=headers) as response,
        ):
            async for part in response.aiter_bytes():
                body += part
                if len(body) > MAX_BYTES:
                    raise ValueError(f"the response exceeds {MAX_BYTES >> 20} MiB: is this an API's address?")
    except TimeoutError:
        raise ValueError(f"the response was not complete within {TIMEOUT_S:g} s") from None
    if response.is_redirect:
        raise ValueError(
            f"status {response.status_code}: it redirects to "
            f"'{response.headers.get('Location', '')[:_EXCERPT]}'; redirects are not followed, since the key "
            "would go there: enter that address if it is the API's"
        )
    if not response.is_success:
        raise ValueError(f"status {response.status_code}: {_reason(body)}")
    return body


def _models(body: bytes) -> list[str]:
    """Return the names of an OpenAI-compatible list of models. Raises ValueError."""
    try:
        return sorted(str(model["id"])[:200] for model in json.loads(body)["data"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(
            f"this is no list of models, as /models of an OpenAI-compatible API returns: {_reason(body)}"
        ) from None


def _reason(body: bytes) -> str:
    """Return the message of a JSON error response, or the beginning of any other response."""
    try:
        answer: Any = json.loads(body)
        message = answer.get("error", answer.get("detail", answer))
        message = message.get("message", message) if isinstance(message, dict) else message
    except (ValueError, AttributeError, RecursionError):
        message = body.decode(errors="replace")
    return str(message).strip()[:_EXCERPT] or "empty response"


def _without(key: str, text: str) -> str:
    return redactor().with_secrets(*filter(None, (key,))).text(text.replace("\0", ""))
