"""Commands that create runs: ``run launch``, ``run clone`` and ``collect``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer
from django.conf import settings as django_settings
from django.db import transaction

from engine.config.base import parse_settings
from engine.config.recipes import RECIPES
from webapp.core.cli import AsJson, CommandError, Settings, command_group, print_json
from webapp.runs.cli.describe import (
    ExperimentName,
    RunId,
    Wait,
    describe,
    find_experiment,
    find_run,
    run_record,
    watch,
)
from webapp.runs.models.runs import Run
from webapp.runs.services import collection, runs
from webapp.runs.services.collection import CollectionRequest
from webapp.runs.services.recipes import resolve_recipe

app = command_group()

Model = Annotated[
    str,
    typer.Option(
        help="Checkpoint (folder, OWNER/NAME, run:ID, builtin:NAME), oracle or noop; with --endpoint the "
        "endpoint's name of a model."
    ),
]
Skip = Annotated[
    Literal["none", "finished", "solved"],
    typer.Option(
        help="Leave out what earlier collections of this model on the dataset have: finished rollouts, or "
        "tasks that they solved."
    ),
]


def parse_each(setting: str | None, recipe: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the overrides of each run of ``--each``, with a name that contains its value; one without any.

    Raises:
        CommandError: the values are no list.
        ConfigError: no such recipe.
    """
    if setting is None:
        return [{}]
    ((key, values),) = parse_settings([setting]).items()
    if not isinstance(values, list) or not values:
        raise CommandError(f"--each wants KEY=[VALUE, ...] with at least one value, not '{setting}'")
    name = given.get("name", resolve_recipe(recipe).name)
    return [{key: value, "name": f"{name} ({value})"[:200]} for value in values]


@app.command()
def launch(
    recipe: Annotated[
        str, typer.Argument(help=f"{', '.join(sorted(RECIPES))}, or a saved one.", show_default=False)
    ],
    settings: Settings = None,
    each: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=[VALUE, ...]",
            help='Create one run for each value of a setting, e.g. \'policy.checkpoint=["run:3", "run:4"]\'.',
        ),
    ] = None,
    experiment: ExperimentName = None,
    draft: Annotated[bool, typer.Option("--draft", help="Create the run without queueing it.")] = False,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Create a run from a recipe and queue it.

    With --each and --experiment there is one run for each value, and the experiment's page compares them.
    With --wait the exit status is 1 unless all runs succeed.
    """
    given = parse_settings(settings or ())
    with transaction.atomic():  # a refused run leaves neither other runs nor an experiment
        group = find_experiment(experiment)
        made = [
            runs.create(recipe=recipe, overrides={**given, **own}, experiment=group)
            for own in parse_each(each, recipe, given)
        ]
        if not draft:
            for run in made:
                runs.start(run=run)
    waited = wait and not draft
    if not as_json:
        for run in made:
            print(describe(run))
    try:
        if waited:
            watch(made, as_json=as_json)
    finally:
        if as_json:
            for run in made:
                run.refresh_from_db()
            print_json([run_record(run) for run in made])


@app.command()
def clone(
    run_id: RunId,
    settings: Settings = None,
    start: Annotated[bool, typer.Option("--start", help="Queue the run at once.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create a draft with another run's configuration and some changes."""
    run = runs.clone(run=find_run(run_id), overrides=parse_settings(settings or ()))
    if start:
        runs.start(run=run)
    print_run(run, as_json=as_json)


def print_run(run: Run, *, as_json: bool) -> None:
    """Print a run as a line of text or as JSON."""
    if as_json:
        print_json(run_record(run))
    else:
        print(describe(run))


def collect(
    dataset: Annotated[str, typer.Argument(help="Name of the dataset.")],
    model: Model,
    endpoint: Annotated[
        str, typer.Option(help="Name of an endpoint; `trainyard endpoint list` lists them.")
    ] = "",
    recipe: Annotated[str, typer.Option(help="Recipe of kind rollout.")] = collection.RECIPE,
    split: Annotated[str | None, typer.Option(help="Split of the dataset.")] = None,
    samples: Annotated[int | None, typer.Option(help="Rollouts per task.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Rollouts at once.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.")] = None,
    start: Annotated[int | None, typer.Option(help="Index of the first task.")] = None,
    limit: Annotated[int | None, typer.Option(help="Number of tasks.")] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Shuffle the tasks (seed: --set seed=N) first.")
    ] = False,
    skip: Skip = "none",
    settings: Settings = None,
    experiment: ExperimentName = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Collect graded rollouts of a model on a dataset, as a run.

    A killed collection continues from its finished rollouts. With --wait the exit status is 1 unless it
    succeeds.
    """
    request = CollectionRequest(
        dataset=dataset, model=model, endpoint=endpoint, recipe=recipe, split=split, samples=samples,
        concurrency=concurrency, temperature=temperature, start_index=start, limit=limit, shuffle=shuffle,
        skip=skip, settings=parse_settings(settings or ()),
    )  # fmt: skip
    with transaction.atomic():  # a refused run leaves no experiment
        run = collection.create(request, experiment=find_experiment(experiment))
        runs.start(run=run)
    if not as_json:
        _print_collection(run, asked=skip != "none")
    try:
        if wait:
            watch([run], as_json=as_json)
    finally:
        if as_json:
            print_json(run_record(run))


def _print_collection(run: Run, *, asked: bool) -> None:
    print(describe(run))
    collection = run.config["collection"]
    if collection["skip_runs"]:
        print(f"{collection['skip']} in run {', '.join(collection['skip_runs'])}: left out")
    elif asked:
        print("no earlier collection of this model on the dataset: nothing is left out")
    print(f"open:   {django_settings.TRAINYARD_WEB_URL}/runs/{run.pk}/")
    print(f"export: trainyard evaluation predictions {run.pk} --output predictions.jsonl", flush=True)
