"""Commands about datasets that are runs: ``dataset validate|curate|harden``. They need running services."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

import typer

from engine.config.base import parse_settings
from webapp.core.cli import (
    AsJson,
    CommandError,
    Settings,
    command_group,
    print_json,
    print_result,
)
from webapp.datasets.models.datasets import Dataset
from webapp.datasets.services import datasets
from webapp.runs.cli.describe import NoWait, describe, run_record, watch
from webapp.runs.cli.launch import print_run
from webapp.runs.models.runs import Run
from webapp.runs.services import dataset_runs, runs

app = command_group()

SUMMARY_KEYS = (
    "dataset", "rows", "valid", "noop_passes", "gold_fails", "flaky", "infra", "quarantined",
    "tests_value", "tests_changed", "tests_added", "tests_without_mutant", "wrong_patches",
    "wrong_patches_rejected", "strength_unmeasured", "seconds",
)  # fmt: skip
_SYNC_WAIT_S = 60.0


@app.command()
def validate(
    name: Annotated[str, typer.Argument(help="Name of the dataset.")],
    repeats: Annotated[
        int | None, typer.Option(help="Gradings of each row without and with its gold patch.")
    ] = None,
    split: Annotated[
        list[str] | None, typer.Option(metavar="SPLIT", help="Validate only this split; may be repeated.")
    ] = None,
    rows: Annotated[
        Literal["all", "unvalidated", "suspect"] | None, typer.Option(help="Rows to validate (default: all).")
    ] = None,
    wrong_patches: Annotated[
        int | None,
        typer.Option(help="Wrong patches of each valid row to grade, for the strength of its tests; try 24."),
    ] = None,
    settings: Settings = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Grade every row of a dataset without and with its gold patch; quarantine invalid tasks.

    The last line is one JSON object of counts. The exit status is 0 if the run succeeds, whatever it finds.
    """
    overrides = parse_settings(settings or ())
    if wrong_patches is not None:
        overrides["validation.wrong_patches"] = wrong_patches
    run = dataset_runs.launch_validation(
        name=name, repeats=repeats, splits=split or [], rows=rows, overrides=overrides
    )
    if no_wait:
        print_run(run, as_json=as_json)
        return
    try:
        watch([run], as_json=as_json)
    finally:
        _print_counts(run)


def _print_counts(run: Run) -> None:
    if run.summary:
        datasets.sync(name=run.summary["dataset"])
        print_json({key: run.summary.get(key) for key in SUMMARY_KEYS})


@app.command()
def curate(
    output: Annotated[str, typer.Option(help="Name of the dataset.")],
    source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE",
            help="Inject faults into a folder, https://HOST/PATH or pip:NAME==VERSION; may be repeated.",
        ),
    ] = None,
    repository: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REPOSITORY",
            help="Use the commits of a folder or https://HOST/PATH instead; may be repeated.",
        ),
    ] = None,
    settings: Settings = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Build a dataset from source trees with tests, or from the commits of repositories."""
    if bool(source) == bool(repository):
        raise CommandError("expected --source or --repository: name what to build the tasks from")
    chosen = parse_settings(settings or ())
    overrides: dict[str, Any] = {"name": f"curate {output}", "curation.output": output}
    if repository:
        recipe, overrides["curation.repositories"] = "commits-dataset", repository
    else:
        recipe = "quickstart-dataset"
        overrides |= {"curation.sources": source, "curation.extra_tasks": []}
        if chosen.get("curation.writer.type", "none") != "none":
            overrides["curation.fault_kinds"] = []  # the recipe's, which a writer does not have
    run = runs.create(recipe=recipe, overrides=overrides | chosen)
    runs.start(run=run)
    _watch_dataset(run, no_wait=no_wait, as_json=as_json)


@app.command()
def harden(
    name: Annotated[str, typer.Argument(help="Name of the dataset.")],
    output: Annotated[str, typer.Option(help="Name of the dataset to make.")],
    alternatives_of: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN",
            help="No additional test may fail a passed patch of this run, by the name of its folder; "
            "may be repeated.",
        ),
    ] = None,
    settings: Settings = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Make a new version of a dataset, with additional tests for tasks whose tests let wrong patches pass."""
    overrides = parse_settings(settings or ())
    if alternatives_of:
        overrides["curation.alternatives_of"] = alternatives_of
    run = dataset_runs.launch_hardening(name=name, output=output, overrides=overrides)
    _watch_dataset(run, no_wait=no_wait, as_json=as_json)


def _watch_dataset(run: Run, *, no_wait: bool, as_json: bool) -> None:
    """Print a queued run; unless ``no_wait``, follow it and print the dataset that it makes."""
    if not as_json:
        print(describe(run))
    if no_wait:
        if as_json:
            print_json(run_record(run))
        return
    watch([run], as_json=as_json)
    dataset = _wait_for_dataset(run.pk)
    record = {
        "name": dataset.name,
        "num_tasks": dataset.num_tasks,
        "splits": dataset.splits,
        "run_id": run.pk,
    }
    line = f"dataset {dataset.name}: {dataset.num_tasks} tasks {dataset.splits}"
    print_result(line, record, as_json=as_json)


def _wait_for_dataset(run_id: int) -> Dataset:
    deadline = time.monotonic() + _SYNC_WAIT_S
    while time.monotonic() < deadline:
        dataset = Dataset.objects.filter(run_id=run_id).first()
        if dataset is not None:
            return dataset
        time.sleep(0.3)
    raise CommandError("the dataset was made but not synchronised; run `trainyard dataset sync NAME`")
