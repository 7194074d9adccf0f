"""Commands that grade without a run: ``grade predictions|log``. The engine grades in a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from django.conf import settings as django_settings

from webapp.core.cli import CommandError, OnlyJson, Settings, command_group

app = command_group("Grade predictions and test logs as the official harnesses do.")


@app.command()
def predictions(
    dataset: Annotated[str, typer.Argument(help="Name of the dataset.")],
    predictions: Annotated[str, typer.Option(help=".jsonl or .json file, or 'gold'.")],
    split: Annotated[str, typer.Option(help="Grade only this split.")] = "",
    run_id: Annotated[str, typer.Option("--run-id", help="Name of the folder of logs.")] = "grade",
    output: Annotated[Path, typer.Option(help="Folder for logs and run report.")] = Path(),
    settings: Settings = None,
    as_json: OnlyJson = True,
) -> None:
    """Grade predictions of a dataset; write per-instance reports and a run report; end with JSON counts."""
    source = predictions if predictions == "gold" else str(Path(predictions).resolve())
    command = ["predictions", "--home", str(django_settings.TRAINYARD_HOME), "--dataset", dataset]
    command += ["--predictions", source, "--split", split, "--run-id", run_id]
    command += ["--output", str(output.resolve())]
    command += [part for setting in settings or () for part in ("--set", setting)]
    print(_grade(command))


@app.command()
def log(
    row: Annotated[Path, typer.Option(help="File with the dataset's row (a JSON object).")],
    log: Annotated[Path, typer.Option(help="The test log.")],
    as_json: OnlyJson = True,
) -> None:
    """Print the official per-instance report of a stored test log, without a sandbox."""
    print(_grade(["log", "--row", str(row.resolve()), "--log", str(log.resolve())]))


def _grade(arguments: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "engine.grading", *arguments],
        cwd=django_settings.BASE_DIR,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CommandError(done.stderr.strip() or "grading failed")
    return done.stdout.strip()
