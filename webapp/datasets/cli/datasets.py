"""Commands about stored datasets: ``dataset export|sync|quarantine|difficulty|disk``."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from django.db.models import Q

from engine.errors import TrainyardError
from engine.terminal import visible_line
from webapp.core.cli import AsJson, CommandError, OnlyJson, command_group, print_json, print_result
from webapp.core.services import audit
from webapp.datasets.contexts.disk import build_disk
from webapp.datasets.models.datasets import Task
from webapp.datasets.selectors import health
from webapp.datasets.selectors.disk import kept_files
from webapp.datasets.services import datasets, difficulty
from webapp.datasets.services import quarantine as quarantine_writes
from webapp.datasets.services.disk import remove_unused
from webapp.supervisor.engine_process import EngineFailedError

app = command_group("Import, make, check and export datasets.")
Name = Annotated[str, typer.Argument(help="Name of the dataset.")]


@app.command()
def export(
    name: Name,
    file: Annotated[
        Path | None, typer.Argument(help="Path to write (default: NAME.jsonl in this folder).")
    ] = None,
    format: Annotated[
        datasets.ExportFormat,
        typer.Option(
            help="Import format of the file: complete rows, or rows of commits in R2E-Gym's schema."
        ),
    ] = "trainyard",
    as_json: OnlyJson = True,
) -> None:
    """Write a dataset with its answers to a file that `dataset import --format FORMAT` reads.

    The file is written atomically and readable by its owner only. Counts are printed as one line of JSON.
    """
    file = file or Path(f"{name}.jsonl")
    temporary = file.with_name(f".{file.name}.part")
    rows = 0
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            for line in datasets.export_lines(name=name, form=format):
                stream.write(line)
                rows += 1
        temporary.replace(file)
        audit.record(actor=None, action="dataset.export", target=f"dataset {name}")
    except (TrainyardError, OSError) as error:
        temporary.unlink(missing_ok=True)
        raise CommandError(str(error)) from None
    print_json({"dataset": name, "exported": rows, "file": str(file)})


@app.command()
def sync(name: Name, as_json: AsJson = False) -> None:
    """Synchronise the database with a dataset's folder; print its number of tasks and of mutated tests."""
    dataset = datasets.sync(name=name)
    counts = health.mutant_counts(dataset)
    mutated = {"mutated_tests": asdict(counts)} if counts is not None else {}
    if as_json:
        fields: dict[str, Any] = {"name": name, "num_tasks": dataset.num_tasks, "splits": dataset.splits}
        print_json(fields | mutated)
        return
    print(f"dataset {dataset.name}: {dataset.num_tasks} tasks {dataset.splits}")
    if mutated:
        print_json(mutated)


@app.command()
def quarantine(
    dataset: Name,
    task: Annotated[str, typer.Argument(help="Key or instance id of the task.")],
    reason: Annotated[str, typer.Option(help="Reason of the decision, visible to every user.")],
    release: Annotated[bool, typer.Option("--release", help="Release the task from quarantine.")] = False,
    as_json: AsJson = False,
) -> None:
    """Quarantine a task (exclude it from training and evaluation) or release it."""
    named = Q(key=task) | Q(instance_id=task)
    row = Task.objects.filter(named, dataset__name=dataset, active=True).first()
    if row is None:
        raise CommandError(f"the dataset '{dataset}' has no task '{task}'")
    quarantine_writes.decide(task=row, quarantined=not release, reason=reason)
    state = "in quarantine" if row.quarantined else "not in quarantine"
    names = ("key", "instance_id", "quarantined", "quarantine_reason")
    record = {name: getattr(row, name) for name in names}
    line = visible_line(f"{row.instance_id} is {state}: {row.quarantine_reason}")
    print_result(line, record, as_json=as_json)


@app.command("difficulty")
def measure_difficulty(name: Name, as_json: AsJson = False) -> None:
    """Export the tasks' measured solve rates to a dataset's folder, for dataset.solve_rate_min."""
    tasks = difficulty.measure(name=name)
    line = f"dataset {name}: {tasks} tasks have a measured solve rate"
    print_result(line, {"name": name, "tasks": tasks}, as_json=as_json)


@app.command()
def disk(
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove what no dataset uses, while no run goes on.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the images, toolchains and repositories that curations keep; remove the unused ones.

    A later curation makes removed files again. Files of the last day stay, and nothing is removed while a
    curation runs.
    """
    try:
        files = remove_unused() if remove else kept_files()
    except EngineFailedError as error:
        raise CommandError(str(error)) from None
    if as_json:
        print_json([asdict(file) for file in files])
        return
    if remove:
        print(f"removed {len(files)} folders, {sum(file.bytes for file in files) / 1e6:,.0f} MB")
        return
    print(f"{'':14}{'used':>20}{'recent':>20}{'unused':>20}")
    for row in build_disk(files).rows:
        amounts = (row.used, row.recent, row.unused)
        cells = (f"{amount.count}: {amount.bytes / 1e6:,.0f} MB" for amount in amounts)
        print(f"{row.name:14}" + "".join(f"{cell:>20}" for cell in cells))
