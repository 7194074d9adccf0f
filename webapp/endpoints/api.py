"""Endpoints: names for operators; addresses, changes and tests for administrators. Keys are write-only."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema
from ninja.errors import HttpError
from pydantic import SecretStr

from webapp.api.auth import admin, caller, operator, role_of_caller
from webapp.core.permissions import Role
from webapp.endpoints import selectors as reads
from webapp.endpoints.models import Endpoint
from webapp.endpoints.services import endpoints
from webapp.endpoints.services.probe import probe

router = Router(tags=["endpoints"])


class EndpointOut(Schema):
    """An endpoint without its key. Address and facts about the key are null for operators."""

    name: str
    note: str
    models: str
    attachable: bool
    """True for a vLLM server whose weights runs may replace."""
    address: str | None
    has_key: bool | None
    key_hint: str | None
    """Last characters of the key; empty if it is too short to show any."""
    key_set_at: datetime | None


class EndpointIn(Schema):
    """Values of an endpoint. Without ``key`` the stored one is kept; an empty one removes it."""

    address: str
    note: str = ""
    models: str = ""
    attachable: bool = False
    """True for a vLLM server that runs may attach to, replacing its weights."""
    key: SecretStr | None = None


class ProbeOut(Schema):
    """Answer of an endpoint."""

    models: list[str]
    num_refused: int
    error: str
    seconds: float


@router.get("/endpoints", response=list[EndpointOut], auth=operator)
def list_endpoints(request: HttpRequest) -> list[dict[str, Any]]:
    """List the endpoints that runs may name."""
    manages = role_of_caller(request) is Role.ADMIN
    return [_shown(row, manages=manages) for row in reads.list_endpoints()]


@router.put("/endpoints/{name}", response=EndpointOut, auth=admin)
def put_endpoint(request: HttpRequest, name: str, body: EndpointIn) -> dict[str, Any]:
    """Create an endpoint, or change the one with this name."""
    key = body.key.get_secret_value() if body.key is not None else None
    endpoint = endpoints.save(
        name=name,
        address=body.address,
        note=body.note,
        models=body.models,
        attachable=body.attachable,
        key=key,
        actor=caller(request),
    )
    return _shown(endpoint, manages=True)


@router.delete("/endpoints/{name}", response={204: None}, auth=admin)
def delete_endpoint(request: HttpRequest, name: str) -> tuple[int, None]:
    """Remove an endpoint with its key."""
    endpoints.remove(endpoint=_find(name), actor=caller(request))
    return 204, None


@router.post("/endpoints/{name}/test", response=ProbeOut, auth=admin)
def test_endpoint(request: HttpRequest, name: str) -> Any:
    """Request the endpoint's models."""
    return probe(endpoint=_find(name), actor=caller(request))


def _find(name: str) -> Endpoint:
    endpoint = reads.get_endpoint(name)
    if endpoint is None:
        raise HttpError(404, f"there is no endpoint '{name}'")
    return endpoint


def endpoint_record(endpoint: Endpoint) -> dict[str, Any]:
    """Return an endpoint without its key, as administrators see it."""
    return EndpointOut.model_validate(_shown(endpoint, manages=True)).model_dump()


def _shown(endpoint: Endpoint, *, manages: bool) -> dict[str, Any]:
    shared = {
        "name": endpoint.name,
        "note": endpoint.note,
        "models": endpoint.allowed_models,
        "attachable": endpoint.attachable,
    }
    names = ("address", "key_hint", "key_set_at")
    return (
        shared
        | {name: getattr(endpoint, name) if manages else None for name in names}
        | {"has_key": endpoint.key_set_at is not None if manages else None}
    )
