"""Search over trajectories: by numbers, and by words in steps, observations, patches and statements.

Thoughts, actions, patches and statements have full-text indexes. Observations, most of the text, have none:
those of the newest trajectories of a run or task are scanned.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from django.contrib.postgres.search import SearchQuery, SearchVector
from django.db.models import F, Q, QuerySet, Window
from django.db.models.functions import Left, RowNumber

from webapp.datasets.models.datasets import INDEXED_CHARS, Task
from webapp.rollouts.models.trajectories import Step, Trajectory
from webapp.rollouts.selectors.annotations import labelled, with_labels
from webapp.rollouts.selectors.regrades import has_flipped
from webapp.rollouts.selectors.scans import has_hit
from webapp.rollouts.selectors.trajectories import with_token_flag
from webapp.runs.models.runs import Run

SEARCH_POOL = 5000
"""Maximum number of matching steps, patches or tasks that a search considers; the page reports more."""
OBSERVED = 300
"""Newest trajectories of a run or task whose observations are searched."""
Indexed = TypeVar("Indexed", Trajectory, Task)
PLACES = MappingProxyType({
    "steps": "thoughts and actions", "observations": "observations", "patches": "patches",
    "statements": "statements",
})  # fmt: skip
"""Kinds of text that can be searched, with labels."""
MOST_CHARS = 200
"""Maximum length of a query."""
_SHOWN_CHARS = 100_000
_TOKENS = re.compile(r'(-?)(?:"([^"]*)"|(\S+))')


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryFilters:
    """Filters of a search; empty means everything."""

    q: str = ""
    """Words (``websearch`` syntax: quotes, ``or``, minus)."""
    place: str = ""
    """Key of ``PLACES`` to search; empty for all."""
    run: int | None = None
    task: str = ""
    """A task's key or a part of its readable name."""
    verdict: str = ""
    termination: str = ""
    phase: str = ""
    finding: str = ""
    """A kind of sign of tampering, or ``any``."""
    flip: str = ""
    """A kind of flip by any regrading, or ``any``."""
    label: str = ""
    """A label of the trajectory or one of its steps."""
    scanner: str = ""
    """A scanner with a hit."""
    reward_min: float | None = None
    reward_max: float | None = None
    steps_min: int | None = None

    def looks_into(self, place: str) -> bool:
        """Return whether one of ``PLACES`` is searched.

        Observations are searched only within a run or a task.
        """
        if place == "observations" and self.run is None and not self.task:
            return False
        return bool(self.q) and self.place in ("", place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A text that contains the words."""

    part: str
    """``step`` (thought and action), ``observation``, ``patch`` or ``statement``."""
    text: str
    index: int | None = None
    """Index of the step; None for other parts."""
    action: str = ""
    """Kind of the step's action."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """One page of trajectories, newest first, with the first matching texts of each."""

    rows: Sequence[Trajectory]
    matches: dict[int, list[Match]]
    total: int
    capped: bool
    """True when more than ``SEARCH_POOL`` texts matched, so that older matches were not considered."""
    next_before: int | None
    """Cursor of the next page."""


def alternatives(q: str) -> list[tuple[list[str], list[str]]]:
    """Return the wanted and the unwanted texts of each alternative of a query in ``websearch`` syntax."""
    pairs: list[tuple[list[str], list[str]]] = [([], [])]
    for minus, phrase, word in _TOKENS.findall(q):
        if not minus and word.lower() == "or":
            pairs.append(([], []))
        elif text := " ".join((phrase or word).split()):
            pairs[-1][bool(minus)].append(text)
    return [pair for pair in pairs if pair[0]]


def _narrowed(filters: TrajectoryFilters) -> QuerySet[Trajectory]:
    rows = Trajectory.objects.all()
    if filters.run is not None:
        rows = rows.filter(run_id=filters.run)
    if filters.task:
        by_key = rows.filter(task_key=filters.task)
        rows = by_key if by_key.exists() else rows.filter(task__instance_id__icontains=filters.task)
    if filters.verdict:
        rows = rows.filter(verdict=filters.verdict)
    if filters.termination == "running":
        rows = rows.filter(state=Trajectory.State.RUNNING)
    elif filters.termination:
        rows = rows.filter(termination=filters.termination)
    if filters.phase:
        rows = rows.filter(phase__startswith=filters.phase)
    if filters.finding == "any":
        rows = rows.exclude(findings=[])
    elif filters.finding:
        rows = rows.filter(findings__contains=[{"kind": filters.finding}])
    if filters.flip:
        rows = rows.filter(has_flipped(filters.flip))
    if filters.label:
        rows = rows.filter(pk__in=labelled(filters.label))
    if filters.scanner:
        rows = rows.filter(has_hit(filters.scanner))
    if filters.reward_min is not None:
        rows = rows.filter(reward__gte=filters.reward_min)
    if filters.reward_max is not None:
        rows = rows.filter(reward__lte=filters.reward_max)
    if filters.steps_min is not None:
        rows = rows.filter(num_steps__gte=filters.steps_min)
    return rows


class _Texts:
    """Texts that match a query.

    Args:
        filters: the query.
        rows: trajectories that pass the other filters.
        oracles: runs whose rollouts are not searched, because they contain the gold patches.
    """

    def __init__(
        self, filters: TrajectoryFilters, rows: QuerySet[Trajectory], *, oracles: Sequence[int]
    ) -> None:
        query = SearchQuery(filters.q, config="simple", search_type="websearch")
        self.steps, self.observed = Step.objects.none(), Step.objects.none()
        self.patches, self.tasks = Trajectory.objects.none(), Task.objects.none()
        visible = rows.exclude(run__in=oracles)
        if filters.looks_into("steps"):
            vector = SearchVector("search_text", config="simple")
            self.steps = Step.objects.annotate(document=vector).filter(document=query)
            if filters.run is not None:
                self.steps = self.steps.filter(trajectory__run_id=filters.run)
            self.steps = self.steps.exclude(trajectory__run__in=oracles)
        if filters.looks_into("observations") and (condition := _contains(filters.q)) is not None:
            newest = list(visible.order_by("-pk").values_list("pk", flat=True)[:OBSERVED])
            self.observed = Step.objects.filter(condition, trajectory_id__in=newest)
        if filters.looks_into("patches"):
            self.patches = _indexed(visible.exclude(patch=""), "patch", query)
        if filters.looks_into("statements"):
            self.tasks = _indexed(Task.objects.all(), "problem_statement", query)

    def condition(self) -> tuple[Q, bool]:
        """Return the condition of matching trajectories, and whether ``SEARCH_POOL`` left any out."""
        steps, observed = (
            list(texts.order_by("-trajectory_id").values_list("trajectory_id", flat=True)[: SEARCH_POOL + 1])
            for texts in (self.steps, self.observed)
        )
        patches, tasks = (
            list(texts.order_by("-pk").values_list("pk", flat=True)[: SEARCH_POOL + 1])
            for texts in (self.patches, self.tasks)
        )
        capped = any(len(ids) > SEARCH_POOL for ids in (steps, observed, patches, tasks))
        return Q(pk__in={*steps, *observed, *patches}) | Q(task__in=tasks), capped

    def matches(self, rows: Sequence[Trajectory], per_part: int = 2) -> dict[int, list[Match]]:
        """Return the first texts of each trajectory, by its id."""
        matches: dict[int, list[Match]] = {row.pk: [] for row in rows}
        ids = list(matches)
        columns = ("trajectory_id", "index", "action")
        for part, steps, text in (
            ("step", self.steps, F("search_text")),
            ("observation", self.observed, Left("observation", _SHOWN_CHARS)),
        ):
            place = Window(RowNumber(), partition_by="trajectory_id", order_by="index")
            first = steps.filter(trajectory_id__in=ids).annotate(place=place).filter(place__lte=per_part)
            shown = first.annotate(head=text).order_by("trajectory_id", "index")
            for pk, index, action, content in shown.values_list(*columns, "head"):
                matches[pk].append(Match(part=part, text=content, index=index, action=action))
        patches = self.patches.filter(pk__in=ids).annotate(head=Left("patch", _SHOWN_CHARS))
        for pk, content in patches.values_list("pk", "head"):
            matches[pk].append(Match(part="patch", text=content))
        tasks = self.tasks.filter(pk__in={row.task_id for row in rows if row.task_id})
        statements = dict(
            tasks.annotate(head=Left("problem_statement", _SHOWN_CHARS)).values_list("pk", "head")
        )
        for row in rows:
            if row.task_id in statements:
                matches[row.pk].append(Match(part="statement", text=statements[row.task_id]))
        return {pk: texts for pk, texts in matches.items() if texts}


def _indexed(rows: QuerySet[Indexed], column: str, query: SearchQuery) -> QuerySet[Indexed]:
    """Narrow rows to those whose indexed text matches."""
    vector = SearchVector(Left(column, INDEXED_CHARS), config="simple")
    return rows.annotate(document=vector).filter(document=query)


def _contains(q: str) -> Q | None:
    """Return the condition of matching observations; None for a query without wanted words."""
    combined: Q | None = None
    for wanted, unwanted in alternatives(q):
        condition = Q()
        for text in wanted:
            condition &= Q(observation__icontains=text)
        for text in unwanted:
            condition &= ~Q(observation__icontains=text)
        combined = condition if combined is None else combined | condition
    return combined


def search(
    filters: TrajectoryFilters, *, before: int | None, size: int = 50, with_answers: bool = False
) -> SearchResult:
    """Return trajectories that pass every filter; with words, those with a text that contains them.

    The oracle's rollouts are searched for words, labels and behaviours only ``with_answers``.
    """
    rows = _narrowed(filters)
    oracles = [] if with_answers else list(Run.playing_answers().values_list("pk", flat=True))
    if filters.label or filters.scanner:
        rows = rows.exclude(run__in=oracles)
    capped, texts = False, None
    if filters.q:
        texts = _Texts(filters, rows, oracles=oracles)
        condition, capped = texts.condition()
        rows = rows.filter(condition)
    total = rows.count()
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
        total=total,
        capped=capped,
        next_before=shown[-1].pk if more else None,
    )
