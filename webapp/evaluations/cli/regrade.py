"""Commands that grade stored rollouts again: ``run regrade|flips``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer
from django.db import transaction

from engine.config.base import parse_settings
from engine.evaluation.flips import FLIPS
from engine.terminal import visible_line
from webapp.core.cli import AsJson, CommandError, Number, Settings, command_group, print_json
from webapp.core.contexts.words import OBSTACLES, in_words
from webapp.evaluations.api import RegradeOut
from webapp.evaluations.contexts.regrading import RegradedPart, regraded_parts
from webapp.rollouts.selectors import regrades as reads
from webapp.runs.cli.describe import RunId, Wait, describe, find_run, run_record, watch
from webapp.runs.services import runs

app = command_group()


@app.command()
def regrade(
    numbers: Annotated[list[int], typer.Argument(metavar="RUN", help="Runs whose rollouts are graded.")],
    dataset: Annotated[
        str, typer.Option(help="Dataset with the new tests (default: the runs' own datasets as they are).")
    ] = "",
    phase: Annotated[
        list[str] | None, typer.Option(metavar="PHASE", help="Only rollouts of this phase; may be repeated.")
    ] = None,
    settings: Settings = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Grade the stored rollouts of runs again, by changed tests or rules, without sampling.

    With --wait the exit status is 1 unless the regrading succeeds; `run flips` lists what changed.
    """
    named = [str(find_run(number).pk) for number in numbers]
    given = {
        "name": f"regrading of run {', '.join(named)}"[:200],
        "regrade.runs": named,
        "regrade.dataset": dataset,
        "regrade.phases": phase or [],
    }
    with transaction.atomic():  # a refused run leaves no draft
        run = runs.create(recipe="regrade", overrides=given | parse_settings(settings or ()))
        runs.start(run=run)
    if not as_json:
        print(describe(run))
    try:
        if wait:
            watch([run], as_json=as_json)
    finally:
        if as_json:
            run.refresh_from_db()
            print_json(run_record(run))


@app.command()
def flips(
    run_id: RunId,
    show: Annotated[
        str, typer.Option(help=f"Trajectories to list: {', '.join((*reads.SHOWN, *FLIPS))}.")
    ] = "flips",
    number: Number = 20,
    as_json: AsJson = False,
) -> None:
    """Print pass@1 and Best@K by the original and the new verdicts of a regrading, and its flips."""
    if show not in (*reads.SHOWN, *FLIPS):
        raise CommandError(f"--show is '{show}'; expected one of {', '.join((*reads.SHOWN, *FLIPS))}")
    run = find_run(run_id)
    totals, parts = reads.totals(run.pk), regraded_parts(run)
    page = reads.list_regrades(run.pk, show=show, size=number)
    if as_json:
        items = [RegradeOut.from_orm(row).model_dump() for row in page.rows]
        print_json({**asdict(totals), "parts": list(map(asdict, parts)), "items": items})
        return
    for part in parts:
        for line in _lines(part):
            print(visible_line(line))
    for name, count in totals.obstacles.items():
        print(f"not graded again: {count} × {in_words(name, OBSTACLES)}")
    for row in page.rows:
        words = (
            f"run {row.source}", f"{row.phase} {row.iteration}", f"task {row.task_key}", f"#{row.index}",
            f"{in_words(row.old_verdict)}, now {in_words(row.verdict or row.obstacle)}", row.detail,
        )  # fmt: skip
        print(visible_line(" · ".join(filter(None, words))))
    print(f"{len(page.rows)} of {page.total} listed")


def _lines(part: RegradedPart) -> Iterator[str]:
    """Yield the rates of a run and phase as lines of text."""
    changes = ", ".join(f"{count} {in_words(kind)}" for kind, count in part.flips.items()) or "no flip"
    yield f"run {part.source} {part.phase}: {part.num_regraded} graded again, {changes}"
    rates: list[tuple[str, Any, Any]] = [("pass@1", part.before.solve_rate, part.after.solve_rate)]
    name = "pass" if part.rule == "oracle" else f"{part.rule} Best"
    rates += [(f"{name}@{pair.k}", pair.before.rate, pair.after.rate) for pair in part.selection[1:]]
    for label, before, after in rates:
        yield f"  {label:<14} {before:6.1%}  now {after:6.1%}"
    if part.note:
        yield f"  {part.note}"
