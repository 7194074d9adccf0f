"""Commands about experiments, and ``run compare``."""

from __future__ import annotations

from typing import Annotated

import typer

from engine.terminal import visible_line
from webapp.core.cli import AsJson, CommandError, OnlyJson, command_group, one_of, print_json
from webapp.experiments import selectors as reads
from webapp.experiments import services as experiments
from webapp.experiments.api import ExperimentOut
from webapp.experiments.contexts.run_comparison import AXES, build_series, summarise_comparison
from webapp.experiments.contexts.tasks_of_runs import tasks_document

app = command_group(
    "List and create experiments; `trainyard run list --experiment NAME` lists the runs of one."
)
run_app = command_group()
_AXES = tuple(axis for axis, _ in AXES)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List experiments with their number of runs."""
    rows = reads.list_experiments()
    if as_json:
        print_json([ExperimentOut.from_orm(row).model_dump() for row in rows])
        return
    for row in rows:
        counts = vars(row)
        parts = (row.name, f"{counts['num_runs']} runs, {counts['num_active']} active", row.description)
        print(visible_line(" · ".join(filter(None, parts))))


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the experiment.")],
    description: Annotated[str, typer.Option(help="Its purpose.")] = "",
    as_json: AsJson = False,
) -> None:
    """Create an experiment, then list all of them."""
    experiments.create(name=name, description=description)
    list_(as_json=as_json)


@run_app.command()
def tasks(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Numbers of the runs.")],
    phase: Annotated[str, typer.Option(help="Only rollouts of this phase, e.g. eval:heldout.")] = "",
    as_json: OnlyJson = True,
) -> None:
    """Print how many rollouts of runs solved each task, those that differ most first, as JSON."""
    try:
        print_json(tasks_document(runs, phase))
    except ValueError as error:
        raise CommandError(str(error)) from None


@run_app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Numbers of the runs.")],
    metric: Annotated[
        list[str] | None, typer.Option(metavar="METRIC", help="Metric to print; may be repeated.")
    ] = None,
    x: Annotated[
        str, typer.Option(callback=one_of(_AXES), metavar="|".join(_AXES), help="Axis of the points.")
    ] = _AXES[0],
    as_json: OnlyJson = True,
) -> None:
    """Print the settings that differ between runs, their metrics, and points of some, as JSON."""
    try:
        comparison = summarise_comparison(runs)
        if metric:
            comparison["series"] = build_series(runs, {"keys": ",".join(metric), "x": x})["runs"]
    except ValueError as error:
        raise CommandError(str(error)) from None
    print_json(comparison, indent=2)
