"""Commands ``search`` and ``searches list|remove``."""

from __future__ import annotations

from typing import Annotated

import typer

from engine.evaluation.flips import FLIPS
from engine.terminal import visible_line
from webapp.core.cli import (
    AsJson,
    CommandError,
    Number,
    command_group,
    one_of,
    print_json,
    print_result,
)
from webapp.core.contexts.frame import trajectory_url
from webapp.rollouts.api.search import SavedSearchOut, SearchPage, saved_record, search_page
from webapp.rollouts.contexts.snippets import snippet
from webapp.rollouts.models.searches import SavedSearch
from webapp.rollouts.selectors import searches as saved_reads
from webapp.rollouts.selectors.filters import TrajectoryFilters, parse_filters
from webapp.rollouts.selectors.passages import PLACES
from webapp.rollouts.selectors.query_words import wanted_pattern
from webapp.rollouts.selectors.search import SearchResult
from webapp.rollouts.selectors.search import search as search_trajectories
from webapp.rollouts.services import searches as saved_writes

app = command_group("List and remove saved searches; `trainyard search WORDS --save NAME` saves one.")
_FLIPS = ("any", *FLIPS)


def search(
    words: Annotated[
        str, typer.Argument(help='words, "a phrase", or, -without; none: by filters alone')
    ] = "",
    run: Annotated[int | None, typer.Option(help="Only trajectories of this run.")] = None,
    place: Annotated[
        str, typer.Option(callback=one_of(PLACES), metavar="|".join(PLACES), help="Texts to search.")
    ] = "",
    task: Annotated[str, typer.Option(help="Only this task.")] = "",
    verdict: Annotated[str, typer.Option(help="Only this verdict.")] = "",
    termination: Annotated[str, typer.Option(help="Only this termination reason, or `running`.")] = "",
    phase: Annotated[str, typer.Option(help="Only this phase.")] = "",
    finding: Annotated[str, typer.Option(help="Only this sign of tampering, or `any`.")] = "",
    flip: Annotated[
        str,
        typer.Option(
            callback=one_of(_FLIPS), metavar="FLIP", help="Only flips of this kind by regradings, or `any`."
        ),
    ] = "",
    label: Annotated[str, typer.Option(help="Only with this label.")] = "",
    scanner: Annotated[str, typer.Option(help="Only with a hit of this scanner.")] = "",
    reward_min: Annotated[float | None, typer.Option(help="Only with at least this reward.")] = None,
    reward_max: Annotated[float | None, typer.Option(help="Only with at most this reward.")] = None,
    steps_min: Annotated[int | None, typer.Option(help="Only with at least this many steps.")] = None,
    saved: Annotated[str, typer.Option(help="Start from the saved search of this name.")] = "",
    save: Annotated[str, typer.Option(help="Save the search under this name, too.")] = "",
    number: Number = 20,
    as_json: AsJson = False,
) -> None:
    """Search all trajectories by words and filters; print the first matching texts of each."""
    given = {
        "q": words, "run": run, "place": place, "task": task, "verdict": verdict, "termination": termination,
        "phase": phase, "finding": finding, "flip": flip, "label": label, "scanner": scanner,
        "reward_min": reward_min, "reward_max": reward_max, "steps_min": steps_min,
    }  # fmt: skip
    start = _find(saved).filters if saved else {}
    filters, problems = parse_filters({**start, **{k: v for k, v in given.items() if v not in ("", None)}})
    if problems:
        raise CommandError("; ".join(problems))
    if save:
        saved_writes.save(name=save, filters=filters)
    result = search_trajectories(filters, before=None, size=number, with_answers=True)
    if as_json:
        print_json(SearchPage.model_validate(search_page(result, filters.q)).model_dump())
    else:
        _print(result, filters)


def _print(result: SearchResult, filters: TrajectoryFilters) -> None:
    pattern = wanted_pattern(filters.q)
    for row in result.rows:
        page = trajectory_url(row.run_id, row.phase, row.iteration, row.task_key, row.index)
        if not filters.q:
            print(visible_line(f"{page} {row.termination or row.state} {row.verdict}".rstrip()))
        for match in result.matches.get(row.pk, []):
            piece = snippet(match, pattern)
            print(visible_line(f"{page}{piece.query} {piece.text}"))
    more = "more than " if result.capped else ""
    print(f"{len(result.rows)} of {more}{result.total} trajectories")


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List saved searches with their filters; `trainyard search --saved NAME` runs one."""
    rows = saved_reads.saved_searches()
    if as_json:
        print_json([SavedSearchOut.model_validate(saved_record(row)).model_dump() for row in rows])
        return
    for row in rows:
        chosen = " ".join(f"{name}={value}" for name, value in row.filters.items())
        print(visible_line(f"{row.name}: {chosen}"))


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="Name of the saved search.")], as_json: AsJson = False
) -> None:
    """Remove a saved search."""
    saved_writes.remove(search=_find(name))
    print_result(f"search {name} was removed", {"name": name, "removed": True}, as_json=as_json)


def _find(name: str) -> SavedSearch:
    saved = saved_reads.saved_search(name)
    if saved is None:
        raise CommandError(f"there is no saved search '{name}'; `trainyard searches list` lists them")
    return saved
