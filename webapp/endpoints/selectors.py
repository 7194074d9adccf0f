"""Reads of endpoints."""

from __future__ import annotations

from webapp.endpoints.models import Endpoint


def list_endpoints() -> list[Endpoint]:
    """Return every endpoint by name, without its encrypted key."""
    return list(Endpoint.objects.defer("sealed_key"))


def get_endpoint(name: str) -> Endpoint | None:
    """Return an endpoint; None if it does not exist."""
    return Endpoint.objects.filter(name=name).first()


def named_models() -> tuple[str, ...]:
    """Return the allowed models of all endpoints; patterns with wildcards are left out."""
    patterns = (pattern for row in list_endpoints() for pattern in row.patterns)
    return tuple(dict.fromkeys(name for name in patterns if not set(name) & set("*?[")))
