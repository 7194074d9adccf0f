"""Endpoints page: names for operators; for administrators also addresses, the form and tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import Problem
from webapp.core.contexts.frame import Crumb
from webapp.endpoints import selectors as reads
from webapp.endpoints.models import Endpoint
from webapp.endpoints.services.probe import ProbeResult

EXAMPLE = "https://api.example.org/v1"
FIELDS = ("name", "address", "note", "models", "attachable")


@dataclass(frozen=True, slots=True)
class Tested:
    """Result of a test, with the name of its endpoint."""

    name: str
    result: ProbeResult


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointsContext:
    """Endpoints page."""

    section: str
    crumbs: tuple[Crumb, ...]
    endpoints: tuple[Endpoint, ...]
    editing: Endpoint | None
    """Endpoint that the form changes; None for a new one."""
    values: Mapping[str, str]
    """The form's content, except keys, which are never sent to the browser."""
    example: str
    """Address in an empty form."""
    refused: tuple[Problem, ...]
    """Reasons why the posted form was not stored."""
    tested: Tested | None


def build_endpoints(
    *,
    edit: str = "",
    posted: Mapping[str, str] | None = None,
    refused: tuple[Problem, ...] = (),
    tested: Tested | None = None,
) -> EndpointsContext:
    """Return the page with the form filled as posted, or from the endpoint ``edit``."""
    rows = tuple(reads.list_endpoints())
    editing = next((row for row in rows if row.name == edit), None)
    return EndpointsContext(
        section="endpoints",
        crumbs=(Crumb("Endpoints"),),
        endpoints=rows,
        editing=editing,
        values={field: (posted or _stored(editing)).get(field, "") for field in FIELDS},
        example=EXAMPLE,
        refused=refused,
        tested=tested,
    )


def _stored(endpoint: Endpoint | None) -> dict[str, str]:
    if endpoint is None:
        return {}
    return {
        "name": endpoint.name,
        "address": endpoint.address,
        "note": endpoint.note,
        "models": endpoint.allowed_models,
        "attachable": "yes" if endpoint.attachable else "",
    }
