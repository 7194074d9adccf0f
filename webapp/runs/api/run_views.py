"""A person's saved views of the runs table."""

from __future__ import annotations

from django.http import HttpRequest
from ninja import Router, Schema

from webapp.api.auth import caller, viewer
from webapp.runs.models.run_views import RunView
from webapp.runs.selectors.run_views import views_of
from webapp.runs.services import run_views as writes

router = Router(tags=["runs"])


class RunViewOut(Schema):
    """A saved view."""

    name: str
    query: str
    """Query string of the runs table."""
    is_default: bool
    """Whether the table opens with it."""


class RunViewIn(Schema):
    """Content of a view; parameters that the runs table does not have are left out."""

    query: str
    is_default: bool = False


@router.get("/run-views", auth=viewer, response=list[RunViewOut])
def list_run_views(request: HttpRequest) -> list[RunView]:
    """List the caller's views of the runs table, by name."""
    return views_of(caller(request).pk)


@router.put("/run-views/{name}", auth=viewer, response=RunViewOut)
def save_run_view(request: HttpRequest, name: str, body: RunViewIn) -> RunView:
    """Save a view of the runs table; the caller's view of the same name is replaced."""
    return writes.save_view(user=caller(request), name=name, query=body.query, is_default=body.is_default)


@router.delete("/run-views/{name}", auth=viewer, response={204: None})
def remove_run_view(request: HttpRequest, name: str) -> tuple[int, None]:
    """Remove one of the caller's views."""
    writes.remove_view(user=caller(request), name=name)
    return 204, None
