"""Runs in the output of commands: one line each, progress until the end, the JSON of the API."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer
from django.utils import timezone

from engine.terminal import visible_line
from webapp.core.cli import CommandError
from webapp.core.contexts.curation_funnel import build_funnel
from webapp.core.contexts.words import in_words
from webapp.experiments import services as experiments
from webapp.experiments.models import Experiment
from webapp.runs.api.runs import RunOut
from webapp.runs.contexts.phase import phase_of
from webapp.runs.kinds import kind_of
from webapp.runs.models.runs import Run
from webapp.runs.selectors import runs as run_reads
from webapp.runs.services.states import TERMINAL

_POLL_S = 0.5

RunId = Annotated[int, typer.Argument(metavar="RUN", help="Number of the run.")]
ExperimentName = Annotated[
    str | None, typer.Option("--experiment", help="Name of its experiment, created if missing.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Print progress until the run has ended.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Queue the run and return.")]


def find_run(run_id: int) -> Run:
    """Return the run. Raises CommandError if it does not exist."""
    run = Run.objects.filter(pk=run_id).first()
    if run is None:
        raise CommandError(f"there is no run {run_id}; `trainyard run list` lists them")
    return run


def find_experiment(name: str | None) -> Experiment | None:
    """Return the experiment of this name, created if missing; None without a name."""
    if name is None:
        return None
    return Experiment.objects.filter(name=name).first() or experiments.create(name=name)


def describe(run: Run) -> str:
    """Return a one-line description of a run."""
    parts = [f"run {run.pk}", run.kind, run.state]
    if run.current_iteration is not None:
        parts.append(f"iteration {run.current_iteration + 1} of {run.total_iterations}")
    if (phase := phase_of(run)) is not None:
        parts.append(str(phase))
    if run.collection and (phase is not None or kind_of(run.kind).collects):
        parts += describe_collection(run.collection)
    if condition := run_reads.condition_of(run):
        parts.append(condition)
    if run.reason:
        parts.append(explained(run))
    return visible_line(" · ".join([*parts, run.name]))


def explained(run: Run) -> str:
    """Return why a run ended, with the text behind it."""
    return visible_line(f"{run.reason} ({run.reason_detail})" if run.reason_detail else run.reason)


def describe_collection(state: Mapping[str, Any]) -> list[str]:
    """Return the results so far of rollouts, as in ``engine.events.types.CollectionProgress``."""
    parts = [f"{state['solved']} of {state['graded']} solved"] if state["graded"] else []
    endings = [(reason, count) for reason, count in state.get("endings", {}).items() if count]
    if endings:
        parts.append(", ".join(f"{in_words(reason)} {count}" for reason, count in endings))
    if state["lost"]:
        parts.append(f"{state['lost']} lost to infrastructure")
    if state["per_hour"]:
        parts.append(f"{state['per_hour']:,.0f} an hour")
    if state["cost"] is not None:
        parts.append(f"{state['cost']:.2f} US dollars")
    return parts


def describe_funnel(run: Run) -> list[str]:
    """Return a line per stage of a curation's funnel; empty for other runs."""
    funnel = build_funnel(run.funnel)
    if funnel is None:
        return []
    lines = []
    for stage in funnel.stages:
        dropped = ", ".join(f"{loss.words} {loss.number}" for loss in stage.losses)
        lines.append(f"{stage.name:20} {stage.reached:7}  {dropped}".rstrip())
    costs = [f"{funnel.seconds / 60:.1f} min in trials"] if funnel.seconds is not None else []
    costs += [f"{funnel.disk_bytes / 2**20:.1f} MB of disk"] if funnel.disk_bytes is not None else []
    if costs:
        lines.append(f"per task: {', '.join(costs)}")
    lines += [f"not used: {origin}: {reason}" for origin, reason in funnel.skipped]
    return [visible_line(line) for line in lines]


def run_record(run: Run) -> dict[str, Any]:
    """Return the run as in the API's list of runs."""
    return RunOut.from_orm(run).model_dump()


def watch(runs: Iterable[Run], *, as_json: bool = False) -> None:
    """Print progress lines of one run after the other until all have ended.

    Args:
        runs: the runs.
        as_json: print the lines on standard error, so that standard output stays JSON.

    Raises:
        CommandError: a run did not succeed.
    """
    stream = sys.stderr if as_json else sys.stdout
    for run in runs:
        last = ""
        while True:
            run.refresh_from_db()
            line = describe(run)
            if line != last:
                print(f"{timezone.now():%H:%M:%S} {line}", file=stream, flush=True)
                last = line
            if run.state in TERMINAL:
                break
            time.sleep(_POLL_S)
        for line in describe_funnel(run):
            print(line, file=stream, flush=True)
        if run.state != "succeeded":
            raise CommandError(f"run {run.pk} {run.state}: {explained(run)}")
