"""Full-text search in the passages of trajectories and in problem statements.

Words are indexed in the background when a rollout has ended (``services.passages``). A text matches if one
of its passages contains the words: some thousand words of consecutive steps, or of a patch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from django.contrib.postgres.search import SearchQuery
from django.db import connection, transaction
from django.db.models import Case, F, Func, Q, QuerySet, TextField, Value, When, Window
from django.db.models.expressions import Combinable
from django.db.models.functions import Concat, Left, RowNumber

from webapp.datasets.models.datasets import STATEMENT_WORDS, Task
from webapp.rollouts.models.passages import Passage
from webapp.rollouts.models.trajectories import Step, Trajectory
from webapp.rollouts.selectors.query_words import candidates, has_phrase, wanted_regex, websearch

WINDOW = 300
"""Newest trajectories that a search compares first. Frequent words fill a page from them, so that the other
passages, of which many match, are not read."""
MOST_MATCHES = 5_000
"""Newest matching passages, matching tasks and matching trajectories that a search considers; the page says
if there are more. The words of a phrase are compared in each of the passages that contain them."""
ACTION: Combinable = Case(
    When(
        ~Q(tool=""),
        then=Func(
            F("arguments"),
            template="(SELECT string_agg(value, E'\\n') FROM jsonb_each_text(%(expressions)s))",
            output_field=TextField(),
        ),
    ),
    default=F("response"),
    output_field=TextField(),
)
"""Text of a step's action: its arguments, or the response in which no tool call was found."""
OBSERVATION: Combinable = Concat("observation", Value("\n"), "error", output_field=TextField())
_TEXTS: MappingProxyType[str, Combinable] = MappingProxyType({
    "thoughts": F("thought"), "actions": ACTION, "observations": OBSERVATION,
})  # fmt: skip
PLACES = (*_TEXTS, "patches", "statements")
"""Kinds of text that can be searched."""
_COMPARED = 500
"""Passages in which a phrase is compared before the page may be full."""
_SHOWN_CHARS = 100_000
"""Characters of a text in which an excerpt is found."""
_PER_PLACE = 2
"""Matching steps of each place that are shown for a trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A text that contains the words."""

    place: str
    """One of ``PLACES``."""
    text: str
    index: int | None = None
    """Index of the step; None for patches and statements."""
    action: str = ""
    """Kind of the step's action."""


Found = tuple[int, str, int, int | None, int | None]
"""Trajectory, place, number, first and last step of a passage."""


class TextSearch:
    """Texts that contain the words of a query.

    Args:
        q: the query.
        place: one of ``PLACES``; empty for all.
        rows: trajectories whose texts are searched.
        before: cursor of the page; None for the first one.
        enough: number of older trajectories that fill the page.
    """

    def __init__(
        self, q: str, place: str, rows: QuerySet[Trajectory], *, before: int | None, enough: int
    ) -> None:
        self._q = q
        self._tasks = Task.objects.none()
        self._found: list[Found] = []
        self.capped = False
        """Whether older texts match that were not considered."""
        if not websearch(q):
            return
        if place in ("", "statements"):
            self._tasks = Task.objects.annotate(document=STATEMENT_WORDS).filter(
                document=SearchQuery(websearch(q), config="simple", search_type="websearch")
            )
        if place != "statements":
            self._search_passages(place, rows, before=before, enough=enough)

    def _search_passages(
        self, place: str, rows: QuerySet[Trajectory], *, before: int | None, enough: int
    ) -> None:
        """Search the newest trajectories of the page, and all older ones if these do not fill it."""
        if before is not None:
            rows = rows.filter(pk__lt=before)
        ids = list(rows.order_by("-pk").values_list("pk", flat=True)[:WINDOW])

        def is_full(found: Sequence[Found]) -> bool:
            return len({pk for pk, *_ in found}) >= enough

        self._found, self.capped = _passages(self._q, place, ids, is_full)
        if len(ids) == WINDOW and not is_full(self._found):
            others = rows.values("pk") if rows.query.where else None
            self._found, self.capped = _passages(self._q, place, others, is_full)
        elif len(ids) == WINDOW:
            self.capped = True

    def condition(self) -> Q:
        """Return the condition of matching trajectories."""
        ids = list(self._tasks.order_by("-pk").values_list("pk", flat=True)[: MOST_MATCHES + 1])
        self.capped |= len(ids) > MOST_MATCHES
        self._tasks = Task.objects.filter(pk__in=ids)
        return Q(pk__in={pk for pk, *_ in self._found}) | Q(task__in=ids)

    def matches(self, rows: Sequence[Trajectory]) -> dict[int, list[Match]]:
        """Return the first texts of each trajectory, by its id."""
        matches: dict[int, list[Match]] = {row.pk: [] for row in rows}
        parts: dict[str, dict[int, tuple[int | None, int | None]]] = {}
        for pk, place, _, first, last in self._found:
            if pk in matches:
                parts.setdefault(place, {}).setdefault(pk, (first, last))
        for place in _TEXTS:
            for pk, match in self._in_steps(place, parts.get(place, {})):
                matches[pk].append(match)
        patches = Trajectory.objects.filter(pk__in=parts.get("patches", ()))
        for pk, text in patches.values_list("pk", Left("patch", _SHOWN_CHARS)):
            matches[pk].append(Match(place="patches", text=text))
        tasks = self._tasks.filter(pk__in={row.task_id for row in rows if row.task_id})
        statements = dict(tasks.values_list("pk", Left("problem_statement", _SHOWN_CHARS)))
        for row in rows:
            if row.task_id in statements:
                matches[row.pk].append(Match(place="statements", text=statements[row.task_id]))
        return {pk: texts for pk, texts in matches.items() if texts}

    def _in_steps(
        self, place: str, ranges: dict[int, tuple[int | None, int | None]]
    ) -> Iterator[tuple[int, Match]]:
        """Yield the first steps with a wanted word in the first passage of each trajectory."""
        if not ranges:
            return
        within = Q()
        for pk, span in ranges.items():
            within |= Q(trajectory_id=pk, index__range=span)
        order = Window(RowNumber(), partition_by="trajectory_id", order_by="index")
        steps = (
            Step.objects.annotate(text=_TEXTS[place])
            .filter(within, text__iregex=wanted_regex(self._q))
            .annotate(order=order)
            .filter(order__lte=_PER_PLACE)
            .annotate(head=Left("text", _SHOWN_CHARS))
            .order_by("trajectory_id", "index")
        )
        for pk, index, action, text in steps.values_list("trajectory_id", "index", "action", "head"):
            yield pk, Match(place=place, text=text, index=index, action=action)


def _passages(
    q: str,
    place: str,
    trajectories: Sequence[int] | QuerySet[Trajectory, Any] | None,
    is_full: Callable[[Sequence[Found]], bool],
) -> tuple[list[Found], bool]:
    """Return the newest matching passages of trajectories, of all with None, and whether more may match."""
    loose = SearchQuery(candidates(q), config="simple", search_type="websearch")
    passages = Passage.objects.filter(words=loose).order_by("-trajectory_id", "place", "number")
    if place:
        passages = passages.filter(place=place)
    if trajectories is not None:
        passages = passages.filter(trajectory__in=trajectories)
    with transaction.atomic(), connection.cursor() as cursor:
        # The planner takes reading and comparing a vector of 14 kB for as cheap as a number: without this
        # it compares those of the whole table with a frequent word.
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = off")
        columns = ("trajectory_id", "place", "number", "first_step", "last_step")
        found = list(passages.values_list(*columns)[: MOST_MATCHES + 1])
        cursor.execute("RESET enable_seqscan; RESET enable_indexscan")
    capped = len(found) > MOST_MATCHES
    if not has_phrase(q):
        return found, capped
    exact: list[Found] = []
    for at in range(0, len(found), _COMPARED):
        if is_full(exact):
            return exact, True
        exact += _with_phrases(q, found[at : at + _COMPARED])
    return exact, capped


def _with_phrases(q: str, found: Sequence[Found]) -> list[Found]:
    """Return the passages that match a query with the order of its words."""
    keys = [list(column) for column in zip(*(row[:3] for row in found), strict=True)]
    with connection.cursor() as cursor:
        # IS TRUE keeps the comparison out of the index, which would compare all passages.
        cursor.execute(
            "SELECT p.trajectory_id, place, number"
            " FROM unnest(%s::bigint[], %s::text[], %s::int[]) AS k(trajectory_id, place, number)"
            " JOIN webapp_passage p USING (trajectory_id, place, number)"
            " WHERE (p.words @@ websearch_to_tsquery('simple', %s)) IS TRUE",
            [*keys, websearch(q)],
        )
        exact = set(cursor.fetchall())
    return [row for row in found if row[:3] in exact]
