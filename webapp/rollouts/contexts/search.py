"""The search over all trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from engine.evaluation.flips import FLIPS
from engine.types import FindingKind, TerminationReason, Verdict
from webapp.core.contexts.frame import Crumb, choices_of
from webapp.core.contexts.numbers import MOST_ID, whole
from webapp.core.permissions import Person, may_remove
from webapp.rollouts.contexts.snippets import Snippet, snippet
from webapp.rollouts.models.searches import SavedSearch
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors import annotations as annotation_reads
from webapp.rollouts.selectors import scans as scan_reads
from webapp.rollouts.selectors.filters import MOST_CHARS, TrajectoryFilters, parse_filters
from webapp.rollouts.selectors.passages import PLACES
from webapp.rollouts.selectors.query_words import wanted_pattern
from webapp.rollouts.selectors.search import search
from webapp.rollouts.selectors.searches import saved_searches

MOST_PENDING = 10_000
"""Largest number of rollouts without an index that the page counts."""


@dataclass(frozen=True, slots=True)
class SearchRow:
    """A matching trajectory with excerpts of its matching texts."""

    trajectory: Trajectory
    snippets: tuple[Snippet, ...]


@dataclass(frozen=True, slots=True)
class SavedRow:
    """A saved search."""

    search: SavedSearch
    query: str
    """Query string of the search page."""
    is_shown: bool
    can_remove: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchContext:
    """Context of the search page."""

    section: str
    crumbs: tuple[Crumb, ...]
    filters: TrajectoryFilters
    filtered: bool
    ignored: tuple[str, ...]
    """Values of the query string that are not valid, with the reason."""
    saved: tuple[SavedRow, ...]
    query: str
    """Query string of the filters."""
    params: Mapping[str, Any]
    """The filters that are not empty."""
    rows: tuple[SearchRow, ...]
    total: int
    capped: bool
    pending: int
    """Ended rollouts whose texts are not indexed yet, at most ``most_pending``; 0 without words."""
    most_pending: int
    next_before: int | None
    first_page: bool
    phases: tuple[tuple[str, str], ...]
    verdicts: tuple[tuple[str, str], ...]
    findings: tuple[tuple[str, str], ...]
    """Kinds of signs of tampering."""
    flips: tuple[tuple[str, str], ...]
    """Kinds of flips by regradings."""
    labels: tuple[str, ...]
    """Frequent labels."""
    scanners: tuple[tuple[str, str], ...]
    terminations: tuple[tuple[str, str], ...]
    places: tuple[tuple[str, str], ...]
    """Choices (value, label) of the filters."""
    most_chars: int


def build_search(person: Person, params: Mapping[str, str]) -> SearchContext:
    """Build the context of the search page: one page of matching trajectories, newest first."""
    filters, ignored = parse_filters(params)
    before = whole(params.get("before", ""), most=MOST_ID)
    shows_answer = person.role.sees_answers
    result = search(filters, before=before, with_answers=shows_answer)
    pattern = wanted_pattern(filters.q)
    return SearchContext(
        section="trajectories",
        crumbs=(Crumb("Trajectories"),),
        filters=filters,
        filtered=filters != TrajectoryFilters(),
        ignored=ignored,
        saved=tuple(
            SavedRow(
                saved,
                urlencode(saved.filters),
                saved.filters == filters.chosen(),
                may_remove(saved.author_id, person.role, person.user.pk),
            )
            for saved in saved_searches()
        ),
        query=urlencode(filters.chosen()),
        params=filters.chosen(),
        rows=tuple(
            SearchRow(row, tuple(snippet(match, pattern) for match in result.matches.get(row.pk, ())))
            for row in result.rows
        ),
        total=result.total,
        capped=result.capped,
        pending=scan_reads.unindexed()[:MOST_PENDING].count() if filters.q else 0,
        most_pending=MOST_PENDING,
        next_before=result.next_before,
        first_page=before is None,
        phases=(("train", "training"), ("eval", "evaluation")),
        verdicts=choices_of(Verdict),
        findings=(("any", "any sign"), *choices_of(FindingKind)),
        flips=(("any", "any flip"), *choices_of(FLIPS)),
        labels=tuple(annotation_reads.common_labels(with_answers=shows_answer)),
        scanners=choices_of(info.name for info in scan_reads.scanners()),
        terminations=choices_of(("running", *TerminationReason)),
        places=choices_of(PLACES),
        most_chars=MOST_CHARS,
    )
