"""Commands that store what engines and other systems recorded: ``ingest spool``, ``trajectories import``."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from django.conf import settings

from webapp.core.cli import AsJson, CommandError, command_group, one_of, print_json, print_result, warn
from webapp.ingestion.services import ingest, trajectories
from webapp.runs.cli.describe import describe, find_run, run_record

app = command_group("Store events that did not arrive.")
trajectories_app = command_group()

_READERS = {
    "r2e-gym": "engine.datasets.trajectories_r2e",
    "conversations": "engine.datasets.trajectories_conversations",
    "atif": "engine.datasets.trajectories_atif",
}
"""Modules that print a file's events. A new format: a module with the same command line, and a name here."""


@app.command()
def spool(
    run_dir: Annotated[Path, typer.Argument(help="Folder of the run.")],
    run: Annotated[int | None, typer.Option(help="Number of the run (default: the folder's name).")] = None,
    as_json: AsJson = False,
) -> None:
    """Store the events of a run folder's events.jsonl that are not stored yet, without its engine."""
    if run is None:
        name = run_dir.resolve().name
        if not name.isdigit():
            raise CommandError(f"{run_dir} is not named after a run; say which one with --run")
        run = int(name)
    found = find_run(run)
    try:
        receipt = ingest.ingest_spool(run_id=found.pk, path=run_dir / "events.jsonl")
    except OSError as error:
        raise CommandError(str(error)) from None
    counts = {"run": found.pk, "accepted": receipt.accepted, "acked_seq": receipt.acked_seq}
    line = f"run {found.pk}: {receipt.accepted} new events, stored up to {receipt.acked_seq}"
    print_result(line, counts, as_json=as_json)


@trajectories_app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="File with trajectories.")],
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            callback=one_of(sorted(_READERS)),
            metavar="|".join(sorted(_READERS)),
            help="Its format.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Import trajectories from a file into a run of their own.

    The engine reads the file in a separate process. Lines that it leaves out are named on standard error.
    """
    if not file.is_file():
        raise CommandError(f"there is no file {file}")
    command = [sys.executable, "-m", _READERS[format_], str(file.resolve())]
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            command, cwd=settings.BASE_DIR, stdout=output, stderr=subprocess.PIPE, check=False
        )
        told = done.stderr.decode(errors="replace").strip()
        if done.returncode:
            raise CommandError(told or f"the file {file} cannot be read")
        output.seek(0)
        run = trajectories.import_lines(file_name=file.name, lines=output)
    if told:
        warn(told)
    count = run.trajectories.count()
    if as_json:
        print_json({**run_record(run), "trajectories": count})
    else:
        print(f"{describe(run)}: {count} trajectories")
