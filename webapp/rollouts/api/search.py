"""Search over trajectories."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema
from ninja.errors import HttpError

from webapp.api.auth import role_of_caller, viewer
from webapp.rollouts.api.trajectories import MAX_SIZE, TrajectoryOut
from webapp.rollouts.contexts.snippets import snippet, words_pattern
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors.search import MOST_CHARS, PLACES, SearchResult, TrajectoryFilters, search

router = Router(tags=["trajectories"], auth=viewer)

_NO_NUL = r"^[^\x00]*$"
Text = Annotated[str, Field(pattern=_NO_NUL)]
"""Text of a filter; PostgreSQL stores no NUL."""


class SearchQuery(Schema):
    """Filters of a search; empty means everything."""

    q: str = Field("", max_length=MOST_CHARS, pattern=_NO_NUL)
    """Words: ``"a phrase"``, ``or``, ``-without``."""
    place: str = ""
    """Texts to search: ``steps``, ``observations`` (of a run or a task), ``patches`` or ``statements``;
    empty for all."""
    run: int | None = None
    task: Text = ""
    """A task's key, or a part of its readable name."""
    verdict: Text = ""
    termination: Text = ""
    phase: Text = ""
    finding: Text = ""
    """A kind of sign of tampering, or ``any``."""
    flip: Text = ""
    """A kind of flip by any regrading, such as ``passed_failed``, or ``any``."""
    label: Text = ""
    """A label of the trajectory or one of its steps."""
    scanner: Text = ""
    """A scanner with a hit."""
    reward_min: float | None = None
    reward_max: float | None = None
    steps_min: int | None = None


class MatchOut(Schema):
    """A matching text."""

    part: str
    """``step`` (thought and action), ``observation``, ``patch`` or ``statement``."""
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
    """Whether more texts match than were considered."""
    items: list[FoundOut]
    next_before: int | None


@router.get("/trajectories", response=SearchPage)
def search_trajectories(
    request: HttpRequest, filters: Query[SearchQuery], before: int | None = None, size: int = 50
) -> dict[str, Any]:
    """Search by words and numbers, newest first; pass ``next_before`` as ``before`` for the next page."""
    if filters.place not in ("", *PLACES):
        raise HttpError(422, f"place: expected one of {', '.join(PLACES)}, not {filters.place[:80]!r}")
    sees_answers = role_of_caller(request).sees_answers
    result = search(
        TrajectoryFilters(**filters.model_dump()),
        before=before,
        size=max(1, min(size, MAX_SIZE)),
        with_answers=sees_answers,
    )
    return search_page(result, filters.q)


def search_page(result: SearchResult, q: str) -> dict[str, Any]:
    """Return the trajectories of a search with the pieces of text that match ``q``, as a ``SearchPage``."""
    pattern = words_pattern(q)
    for row in result.rows:
        row.matches = [  # type: ignore[attr-defined]
            {
                "part": match.part,
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
