"""Search over trajectories, and saved searches."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router, Schema
from ninja.errors import HttpError

from webapp.api.auth import caller, operator, role_of_caller, viewer
from webapp.core.permissions import Person, check_author
from webapp.rollouts.api.trajectories import MAX_SIZE, TrajectoryOut
from webapp.rollouts.contexts.snippets import snippet
from webapp.rollouts.models.searches import SavedSearch
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors import searches as saved_reads
from webapp.rollouts.selectors.filters import TrajectoryFilters
from webapp.rollouts.selectors.query_words import wanted_pattern
from webapp.rollouts.selectors.search import SearchResult, search
from webapp.rollouts.services import searches as saved_writes

router = Router(tags=["trajectories"], auth=viewer)


class MatchOut(Schema):
    """A matching text."""

    place: str
    """``thoughts``, ``actions``, ``observations``, ``patches`` or ``statements``."""
    index: int | None
    """Index of the step; null for other parts."""
    action: str
    text: str
    """Excerpt around the first match."""


class FoundOut(TrajectoryOut):
    """A trajectory, with its labels and its first matching texts."""

    labels: list[str]
    """Labels of the trajectory and its steps."""
    matches: list[MatchOut]

    @staticmethod
    def resolve_labels(row: Trajectory) -> list[str]:
        """Return the texts of the labels, each once."""
        return list(dict.fromkeys(label.text for label in getattr(row, "labels", ())))


class SearchPage(Schema):
    """One page of found trajectories; ``next_before`` is the cursor of the next page."""

    total: int
    capped: bool
    """Whether there are more matches than ``total``: frequent words are not counted to the end. With words
    and ``before``, it counts those before the cursor."""
    items: list[FoundOut]
    next_before: int | None


class SavedSearchOut(Schema):
    """A saved search."""

    name: str
    filters: dict[str, Any]
    """Parameters of ``/trajectories``."""
    author: str | None
    created_at: datetime


@router.get("/trajectories", response=SearchPage)
def search_trajectories(
    request: HttpRequest, filters: Query[TrajectoryFilters], before: int | None = None, size: int = 50
) -> dict[str, Any]:
    """Search by words and numbers, newest first; pass ``next_before`` as ``before`` for the next page."""
    sees_answers = role_of_caller(request).sees_answers
    size = max(1, min(size, MAX_SIZE))
    result = search(filters, before=before, size=size, with_answers=sees_answers)
    return search_page(result, filters.q)


def search_page(result: SearchResult, q: str) -> dict[str, Any]:
    """Return the trajectories of a search with the pieces of text that match ``q``, as a ``SearchPage``."""
    pattern = wanted_pattern(q)
    for row in result.rows:
        row.matches = [  # type: ignore[attr-defined]
            {
                "place": match.place,
                "index": match.index,
                "action": match.action,
                "text": snippet(match, pattern).text,
            }
            for match in result.matches.get(row.pk, ())
        ]
    return {
        "total": result.total,
        "capped": result.capped,
        "items": list(result.rows),
        "next_before": result.next_before,
    }


def saved_record(saved: SavedSearch) -> dict[str, Any]:
    """Return a saved search as ``SavedSearchOut``."""
    return {
        "name": saved.name,
        "filters": saved.filters,
        "author": saved.author.get_username() if saved.author else None,
        "created_at": saved.created_at,
    }


@router.get("/searches", response=list[SavedSearchOut])
def list_searches(request: HttpRequest) -> list[dict[str, Any]]:
    """List the saved searches of all people."""
    return [saved_record(saved) for saved in saved_reads.saved_searches()]


@router.put("/searches/{name}", auth=operator, response=SavedSearchOut)
def save_search(request: HttpRequest, name: str, body: TrajectoryFilters) -> dict[str, Any]:
    """Save a search, or change one's own; administrators may change any."""
    person = Person(caller(request), role_of_caller(request))
    return saved_record(saved_writes.save(name=name, filters=body, actor=person))


@router.delete("/searches/{name}", auth=operator, response={204: None})
def remove_search(request: HttpRequest, name: str) -> tuple[int, None]:
    """Remove a saved search: one's own, or as administrator any."""
    saved = saved_reads.saved_search(name)
    if saved is None:
        raise HttpError(404, f"there is no saved search '{name[:80]}'")
    user = caller(request)
    check_author(saved.author_id, role_of_caller(request), user.pk)
    saved_writes.remove(search=saved, actor=user)
    return 204, None
