"""Commands about experiments, and ``run compare``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from django.db import transaction

from engine.terminal import visible_line, visible_text
from webapp.core.cli import AsJson, CommandError, OnlyJson, command_group, one_of, print_json
from webapp.experiments import selectors as reads
from webapp.experiments import services as experiments
from webapp.experiments.api import ExperimentDetail, ExperimentOut, PowerOut, ResultsOut
from webapp.experiments.contexts.arms import build_cells
from webapp.experiments.contexts.power import compute_power
from webapp.experiments.contexts.results import build_results
from webapp.experiments.contexts.run_comparison import build_series, summarise_comparison
from webapp.experiments.contexts.tasks_of_runs import tasks_document
from webapp.experiments.designs import Design, make_design, seeds_text, stored_design
from webapp.experiments.models import Experiment
from webapp.runs.cli.describe import describe, find_experiment, run_record
from webapp.runs.contexts.chart_points import AXES
from webapp.runs.models.runs import Run
from webapp.runs.services import batches, experiment_runs, states

app = command_group(
    "Launch and compare experiments; `trainyard run list --experiment NAME` lists the runs of one."
)
Name = Annotated[str, typer.Argument(help="Name of the experiment.")]
Goal = Annotated[str, typer.Option(help="Its goal.")]
Hypothesis = Annotated[str, typer.Option(help="Its hypothesis.")]
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
        parts = (row.name, f"{counts['num_runs']} runs, {counts['num_active']} active", row.goal)
        print(visible_line(" · ".join(filter(None, parts))))


@app.command()
def create(
    name: Name,
    goal: Goal = "",
    hypothesis: Hypothesis = "",
    max_rollouts: Annotated[int | None, typer.Option(help="Budget of its runs in rollouts.")] = None,
    as_json: AsJson = False,
) -> None:
    """Create an experiment, then list all of them."""
    experiments.create(name=name, goal=goal, hypothesis=hypothesis, max_rollouts=max_rollouts)
    list_(as_json=as_json)


@app.command()
def edit(
    name: Name,
    goal: Annotated[str | None, typer.Option(help="New goal.")] = None,
    hypothesis: Annotated[str | None, typer.Option(help="New hypothesis.")] = None,
    conclusion: Annotated[str | None, typer.Option(help="New conclusion.")] = None,
    max_rollouts: Annotated[
        int | None, typer.Option(help="Budget of its runs in rollouts; 0 removes it.")
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(help="`edit_version` as it was read: refuse if it was edited since."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change goal, hypothesis, conclusion or budget of an experiment, then show it."""
    texts = {"goal": goal, "hypothesis": hypothesis, "conclusion": conclusion}
    experiments.edit(experiment=_find(name), texts=texts, max_rollouts=max_rollouts, version=version)
    show(name, as_json=as_json)


@app.command()
def launch(
    name: Name,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=[KEY=VALUE]",
            help="Arm with a setting, e.g. std=algorithm.preset=grpo; `NAME=` has none. Repeat it for more "
            "arms, and with the same name for more settings. The first arm is the baseline.",
        ),
    ] = None,
    recipe: Annotated[str, typer.Option(help="Recipe that all arms start from.")] = "",
    run: Annotated[
        int | None, typer.Option(metavar="RUN", help="Run that all arms start from, instead of a recipe.")
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N|SEED,SEED",
            help="Number of seeds, or seeds separated by commas; without it those of the last launch, or 3.",
        ),
    ] = None,
    goal: Goal = "",
    hypothesis: Hypothesis = "",
    as_json: AsJson = False,
) -> None:
    """Queue what is missing of an experiment's arms × seeds; it is created if missing.

    Runs that exist are left alone; drafts, failed and stopped ones continue. Without --arm, the arms and
    seeds of the last launch count.
    """
    if not arm and (recipe or run is not None or seeds is not None):
        raise CommandError("--recipe, --run and --seeds need --arm: without it, the last launch is repeated")
    with transaction.atomic():  # a refused launch leaves no experiment
        experiment = find_experiment(name)
        assert experiment is not None
        experiments.edit(
            experiment=experiment, texts={"goal": goal or None, "hypothesis": hypothesis or None}
        )
        last = stored_design(experiment)
        if seeds is None:
            seeds = seeds_text(last.seeds) if last is not None else "3"
        design = _design(arm, recipe, run, seeds) if arm else None
        launched = experiment_runs.launch(experiment=experiment, design=design)
    if as_json:
        print_json(
            {
                "created": [run_record(created) for created in launched.created],
                "continued": [run_record(continued) for continued in launched.continued],
            }
        )
        return
    for queued in (*launched.created, *launched.continued):
        print(describe(queued))
    print(f"{len(launched.created)} runs created, {len(launched.continued)} continued")


def _design(arms: Sequence[str], recipe: str, run: int | None, seeds: str) -> Design:
    parts = [text.partition("=") for text in arms]
    if unnamed := [name for name, equals, _ in parts if not equals]:
        raise CommandError(f"--arm wants NAME= or NAME=KEY=VALUE, not '{unnamed[0]}'")
    named = [(name, [setting] if setting else []) for name, _, setting in parts]
    return make_design(recipe=recipe, base_run=run, arms=named, seeds=seeds)


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Print an experiment: goal, hypothesis, conclusion, and the run of each arm and seed."""
    experiment = _find(name)
    if as_json:
        print_json(ExperimentDetail.from_orm(experiment).model_dump())
        return
    for label in experiments.TEXTS:
        if text := getattr(experiment, label):
            print(visible_text(f"{label}: {text}"))
    for row in build_cells(experiment):
        print(visible_line(" · ".join([row.arm.name, *row.lines])))
        for cell in row.cells:
            state = f"run {cell.run.pk} {cell.run.state}" if cell.run else "no run"
            print(f"  seed {cell.seed}: {state}")


@app.command()
def results(name: Name, as_json: AsJson = False) -> None:
    """Print the arms of an experiment over their finished seeds, and against the first arm."""
    found = build_results(build_cells(_find(name)))
    if as_json:
        print_json(ResultsOut.from_orm(found).model_dump() if found is not None else None)
        return
    if found is None:
        print("no run of an arm has succeeded with a result yet")
        return
    print(f"{found.metric}; 95 % intervals of the change over seeds, and over tasks")
    for result in found.arms:
        parts = [f"{result.row.arm.name}: {result.verdict}"]
        if result.mean is not None:
            parts.append(f"{result.mean:.3f} over {len(result.values)} of {len(result.row.cells)} seeds")
        if result.difference is not None:
            parts.append(f"change {result.difference:+.3f}")
        for label, low, high in (
            ("seeds", result.interval_low, result.interval_high),
            ("tasks", result.task_low, result.task_high),
        ):
            if low is not None and high is not None:
                parts.append(f"{label} {low:+.3f} to {high:+.3f}")
        print(visible_line(" · ".join(parts)))
    if found.deviation is not None and found.gain is not None:
        print(f"standard deviation over seeds {found.deviation:.3f}; smallest gain shown {found.gain:.3f}")


@app.command()
def power(
    name: Annotated[
        str | None, typer.Argument(help="Experiment whose finished runs show the spread over seeds.")
    ] = None,
    gain: Annotated[
        float | None, typer.Option(help="Gain to show, in the unit of the result: 0.02 is 2 points.")
    ] = None,
    deviation: Annotated[float | None, typer.Option(help="Standard deviation over seeds.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Planned number of seeds of each arm.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the number of seeds that a gain needs, and the gain that a number of seeds shows.

    For a paired two-sided comparison of two arms at 5 %, with a power of 80 %.
    """
    experiment = _find(name) if name is not None else None
    computed = compute_power(deviation=deviation, experiment=experiment, gain=gain, seeds=seeds)
    if as_json:
        print_json(PowerOut.from_orm(computed).model_dump())
        return
    print(visible_line(f"standard deviation over seeds: {computed.deviation:.3g} ({computed.source})"))
    if computed.gain is not None:
        print(f"a gain of {computed.gain:g} needs {computed.seeds_needed or 'more than 10000'} seeds an arm")
    if computed.seeds is not None:
        shown = "no gain" if computed.smallest_gain is None else f"a gain of {computed.smallest_gain:.3g}"
        print(f"{computed.seeds} seeds an arm show {shown}")


@app.command()
def stop(name: Name, as_json: AsJson = False) -> None:
    """Stop all queued and live runs of an experiment."""
    runs = reads.runs_in_states(_find(name), states.IN_PROGRESS)
    batches.change_all(batch=runs, action="stop")
    _print_runs(runs, as_json=as_json)


@app.command()
def archive(name: Name, as_json: AsJson = False) -> None:
    """Archive all runs of an experiment; refused while one is queued or live."""
    runs = reads.runs_in_states(_find(name), list(states.TRANSITIONS))
    batches.change_all(batch=runs, action="archive")
    _print_runs(runs, as_json=as_json)


def _print_runs(runs: Sequence[Run], *, as_json: bool) -> None:
    if as_json:
        print_json([run_record(run) for run in runs])
        return
    for run in runs:
        print(describe(run))


def _find(name: str) -> Experiment:
    try:
        return reads.experiment_named(name)
    except Experiment.DoesNotExist as error:
        raise CommandError(f"{error}; `trainyard experiment list` lists them") from None


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
