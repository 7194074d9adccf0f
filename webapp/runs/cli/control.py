"""Commands that list, control and edit runs: ``run list|stop|pause|resume|edit|delete|log|timeline``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from engine.terminal import visible_line
from webapp.core.cli import AsJson, CommandError, Number, at_most_one, command_group, print_json
from webapp.core.contexts.words import show
from webapp.experiments.models import Experiment
from webapp.experiments.selectors import experiment_named
from webapp.runs.api.checkpoints import KnownCheckpointOut
from webapp.runs.api.logs import LogOut
from webapp.runs.api.runs import RunPage, list_record
from webapp.runs.api.timelines import TimelinePage
from webapp.runs.cli.describe import RunId, describe, find_run, run_record
from webapp.runs.cli.launch import print_run
from webapp.runs.contexts.forms.offers import describe_checkpoint
from webapp.runs.contexts.rows import COLUMNS, RunRow
from webapp.runs.contexts.run_table import parse_columns, plain_values, read_table
from webapp.runs.contexts.timeline import Strip, build_timeline
from webapp.runs.selectors.checkpoints import find_known
from webapp.runs.selectors.logs import log_tail
from webapp.runs.selectors.run_table import GROUPS, RunFilters, RunGroup, is_group
from webapp.runs.selectors.timelines import list_timelines
from webapp.runs.services import attempts, deletion, edits, runs

app = command_group()


@app.command("list")
def list_(
    state: Annotated[str, typer.Option(help="Only runs in this state, or `active` ones.")] = "",
    kind: Annotated[str, typer.Option(help="Only runs of this kind.")] = "",
    tag: Annotated[str, typer.Option(help="Only runs with this tag.")] = "",
    experiment: Annotated[
        str | None, typer.Option(help="Only runs of the experiment with this name.")
    ] = None,
    archived: Annotated[bool, typer.Option("--archived", help="Include archived runs.")] = False,
    sort: Annotated[
        str, typer.Option(help="Column to sort by, with a minus in front for descending.")
    ] = "-id",
    columns: Annotated[
        str,
        typer.Option(
            metavar="KEY,KEY",
            help=f"Columns instead of the state: {', '.join(COLUMNS)}, set:SETTING, metric:NAME.",
        ),
    ] = "",
    group_by: Annotated[
        str, typer.Option(help=f"Group by {', '.join(GROUPS)} or set:SETTING, with mean held-out rates.")
    ] = "",
    number: Number = 20,
    as_json: AsJson = False,
) -> None:
    """List the newest runs, or a table of them."""
    if group_by and not is_group(group_by):
        raise CommandError(
            f"runs cannot be grouped by '{group_by}', only by {', '.join(GROUPS)}, set:SETTING"
        )
    if columns and (unknown := set(columns.split(",")) - {column.key for column in parse_columns(columns)}):
        raise CommandError(f"there is no column '{min(unknown)}'; `trainyard run list --help` lists them")
    try:
        chosen = experiment_named(experiment) if experiment is not None else None
    except Experiment.DoesNotExist as error:
        raise CommandError(str(error)) from None
    filters = RunFilters(
        state=state,
        kind=kind,
        tag=tag,
        experiment=chosen.pk if chosen is not None else None,
        archived="all" if archived else "",
        sort=sort,
        group=group_by,
    )
    table = read_table(filters, columns=columns, number=1, size=number)
    if as_json:
        print_json(RunPage.model_validate(list_record(table, with_values=bool(columns))).model_dump())
        return
    for row in table.rows:
        if row.begins is not None:
            print(visible_line(f"{group_by} {describe_group(row.begins)}"))
        print(table_line(row) if columns else describe(row.run))
    print(f"{len(table.rows)} of {table.page.total} runs")


def describe_group(group: RunGroup) -> str:
    """Return a group's value, number of runs and mean held-out rate as text."""
    text = f"{show(group.value)}: {group.num_runs} runs"
    if group.mean is None:
        return f"{text}, no held-out rate"
    spread = f"{group.rates[0]:.1%} to {group.rates[-1]:.1%}"
    return f"{text}, mean held-out rate {group.mean:.1%} ({spread}, {len(group.rates)} runs)"


def table_line(row: RunRow) -> str:
    """Return a run with the values of its columns as a line."""
    values = (f"{key}={show(value)}" for key, value in plain_values(row).items())
    return visible_line(" · ".join([f"run {row.run.pk}", row.run.name, *values]))


@app.command()
def stop(run_id: RunId, as_json: AsJson = False) -> None:
    """Ask a run to stop."""
    run = find_run(run_id)
    runs.stop(run=run)
    print_run(run, as_json=as_json)


@app.command()
def token(run_id: RunId, as_json: AsJson = False) -> None:
    """Print a new token with which another program posts a run's events; it replaces the last one.

    The run has `launcher.backend=external`.
    """
    issued = asdict(attempts.issue_token(run=find_run(run_id)))
    if as_json:
        print_json(issued)
    else:
        print("\n".join(f"{name}: {value}" for name, value in issued.items()))


@app.command()
def pause(run_id: RunId, as_json: AsJson = False) -> None:
    """Ask a run to pause."""
    run = find_run(run_id)
    runs.pause(run=run)
    print_run(run, as_json=as_json)


@app.command()
def resume(run_id: RunId, as_json: AsJson = False) -> None:
    """Resume a paused run, or continue a failed or stopped one from its last checkpoint.

    A verifier's run or regrading that succeeded without some of its results retries these.
    """
    run = find_run(run_id)
    runs.resume(run=run)
    print_run(run, as_json=as_json)


@app.command()
def edit(
    run_id: RunId,
    name: Annotated[str | None, typer.Option(help="New name.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="Tag to add; may be repeated.")] = None,
    untag: Annotated[
        list[str] | None, typer.Option(metavar="TAG", help="Tag to remove; may be repeated.")
    ] = None,
    notes: Annotated[str | None, typer.Option(help="New notes.")] = None,
    experiment: Annotated[
        str | None, typer.Option(help="Created if missing; an empty name removes the run.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="Pin as the baseline of `experiment` or of `all` runs; an empty value unpins."),
    ] = None,
    archive: Annotated[bool, typer.Option("--archive", help="Leave the run out of lists.")] = False,
    restore: Annotated[bool, typer.Option("--restore", help="Undo --archive.")] = False,
    acknowledge: Annotated[
        bool, typer.Option("--acknowledge", help="Acknowledge the run's failure.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Rename, tag, annotate, archive, restore or acknowledge a run, or move it to an experiment."""
    at_most_one(archive=archive, restore=restore, acknowledge=acknowledge)
    run = find_run(run_id)
    tags = {*run.tags, *(tag or ())} - set(untag or ()) if tag or untag else None
    version = edits.version_of(run)
    changes = edits.Edit(
        name=name, tags=tags, notes=notes, experiment=experiment, baseline=baseline, version=version
    )
    edits.edit(run=run, changes=changes)
    if archive:
        edits.archive(run=run)
    elif restore:
        edits.restore(run=run)
    elif acknowledge:
        edits.acknowledge(run=run)
    run.refresh_from_db()
    if as_json:
        print_json(run_record(run))
    else:
        print(" · ".join([describe(run), *map(visible_line, run.tags)]))


@app.command()
def checkpoints(
    words: Annotated[list[str] | None, typer.Argument(help="Words of a run's name or number.")] = None,
    as_json: AsJson = False,
) -> None:
    """List stored checkpoints, newest first, with the values of settings that name them."""
    known = find_known(" ".join(words or ()))
    if as_json:
        print_json([KnownCheckpointOut.from_orm(checkpoint).model_dump() for checkpoint in known])
        return
    for checkpoint in known:
        print(visible_line(f"{checkpoint.reference} · {describe_checkpoint(checkpoint)}"))


@app.command()
def delete(run_id: RunId, as_json: AsJson = False) -> None:
    """Begin to delete an archived run with its rollouts; a worker does it. Its files remain."""
    run = find_run(run_id)
    deletion.request(run=run)
    if as_json:
        print_json(run_record(run))
    else:
        print(f"run {run.pk} is being deleted")


@app.command()
def log(
    run_id: RunId,
    most: Annotated[int, typer.Option("--bytes", min=1, help="Size of the part that is printed.")] = 64
    * 1024,
    as_json: AsJson = False,
) -> None:
    """Print the end of a run's log, wherever its process runs."""
    tail = log_tail(find_run(run_id).pk, most=most)
    print(LogOut.from_orm(tail).model_dump_json() if as_json else tail.text)


@app.command()
def timeline(
    run_id: RunId,
    page: Annotated[int, typer.Option(min=1, help="Page of ten iterations, newest first.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Print when engines and trainer were busy in the newest iterations, and what rollouts waited for."""
    run = find_run(run_id)
    if as_json:
        timelines = list_timelines(run.pk, number=page)
        answer = TimelinePage.model_validate({"total": timelines.total, "items": list(timelines.rows)})
        print(answer.model_dump_json())
        return
    shown = build_timeline(run.pk, {"page": str(page)}).page
    for strip in shown.rows:
        for line in strip_lines(strip):
            print(line)
    print(f"showing {shown.first}–{shown.last} of {shown.total} iterations")


def strip_lines(strip: Strip) -> Iterator[str]:
    """Yield a strip as lines of text, one per lane."""
    yield f"iteration {strip.index}: {strip.seconds:.2f} s"
    for lane in strip.lanes:
        cause = lane.cause
        why = f"  {cause.name} {cause.relation}, {cause.seconds:.2f} s" if cause is not None else ""
        yield f"  {lane.label:<13} {lane.text} {lane.seconds:8.2f} s {lane.share:4.0%}{why}"
