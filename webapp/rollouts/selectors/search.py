"""Search over trajectories: by words and by other filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors.annotations import with_labels
from webapp.rollouts.selectors.filters import TrajectoryFilters, narrowed
from webapp.rollouts.selectors.passages import MOST_MATCHES, Match, TextSearch
from webapp.rollouts.selectors.trajectories import with_token_flag
from webapp.runs.models.runs import Run


@dataclass(frozen=True, slots=True)
class SearchResult:
    """One page of trajectories, newest first, with the first matching texts of each."""

    rows: Sequence[Trajectory]
    matches: dict[int, list[Match]]
    total: int
    """Number of matching trajectories, with words of those before the cursor; at least, if ``capped``."""
    capped: bool
    """True when the page was found without all matching texts. Without ``next_before``, there are too many:
    those of older rollouts were not considered."""
    next_before: int | None
    """Cursor of the next page."""


def search(
    filters: TrajectoryFilters, *, before: int | None, size: int = 50, with_answers: bool = False
) -> SearchResult:
    """Return trajectories that pass every filter; with words, those with a text that contains them.

    The oracle's rollouts are searched for words, labels and behaviours only ``with_answers``.
    """
    rows = narrowed(filters)
    oracles = [] if with_answers else list(Run.playing_answers().values_list("pk", flat=True))
    visible = rows.exclude(run__in=oracles) if oracles else rows
    if filters.label or filters.scanner:
        rows = visible
    texts = None
    if filters.q:
        texts = TextSearch(filters.q, filters.place, visible, before=before, enough=size + 1)
        rows = rows.filter(texts.condition())
    counted = rows.order_by()[: MOST_MATCHES + 1].count() if texts is not None else rows.count()
    if before:
        rows = rows.filter(pk__lt=before)
    shown = list(
        with_labels(with_token_flag(rows), hidden_runs=oracles)
        .select_related("run", "task")
        .defer("patch", "test_log", "detail", "error", "run__config", "task__problem_statement")
        .order_by("-pk")[: size + 1]
    )
    more = len(shown) > size
    shown = shown[:size]
    return SearchResult(
        rows=shown,
        matches=texts.matches(shown) if texts is not None else {},
        total=counted if texts is None else min(counted, MOST_MATCHES),
        capped=texts is not None and (texts.capped or counted > MOST_MATCHES),
        next_before=shown[-1].pk if more else None,
    )
