"""The command ``dataset import``: import a published dataset.

The engine imports in a separate process; no service needs to run. A killed import changes no dataset and is
continued by the same command. The last line is one JSON object of counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from django.conf import settings as django_settings
from django.db import Error as DatabaseError

from engine.config.access.places import HUB_PREFIX
from engine.config.importing import FORMATS
from engine.terminal import visible_line
from webapp.core.cli import (
    CommandError,
    OnlyJson,
    Settings,
    at_most_one,
    command_group,
    one_of,
    print_json,
    warn,
)
from webapp.datasets.services import datasets

app = command_group()

Format = Annotated[
    str, typer.Option("--format", callback=one_of(FORMATS), metavar="FORMAT", help=", ".join(FORMATS) + ".")
]
Languages = Annotated[
    list[str] | None, typer.Option(metavar="LANGUAGE", help="Keep only this language; may be repeated.")
]
Rules = Annotated[
    list[str] | None, typer.Option(metavar="RULE", help="E.g. 'patch_lines<=200'; may be repeated.")
]


@app.command("import")
def import_(
    source: Annotated[str, typer.Argument(help="File, folder, or hf:OWNER/NAME.")],
    format_: Format,
    name: Annotated[str, typer.Option(help="Name of the dataset to create.")],
    split: Annotated[str | None, typer.Option(help="Put every row into this split.")] = None,
    source_split: Annotated[str | None, typer.Option(help="Read only this split of the source.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit at the hub.")] = None,
    subset: Annotated[str | None, typer.Option(help="Configuration of the hub's dataset.")] = None,
    limit: Annotated[int | None, typer.Option(help="Number of rows to read.")] = None,
    append: Annotated[bool, typer.Option("--append", help="Add the rows to an existing dataset.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing dataset.")] = False,
    decontaminate: Annotated[
        bool, typer.Option("--decontaminate", help="Exclude repositories of SWE-bench Verified.")
    ] = False,
    reference: Annotated[
        str | None, typer.Option(help="File with the rows of a benchmark to decontaminate from.")
    ] = None,
    language: Languages = None,
    where: Rules = None,
    min_words: Annotated[int | None, typer.Option(help="Minimum length of a problem statement.")] = None,
    drop_leaking: Annotated[
        bool, typer.Option("--drop-leaking", help="Exclude rows whose statement quotes the fix.")
    ] = False,
    drop_ungradable: Annotated[
        bool, typer.Option("--drop-ungradable", help="Exclude rows that cannot be graded here.")
    ] = False,
    image_prefix: Annotated[str | None, typer.Option(help="Registry to prepend to image names.")] = None,
    settings: Settings = None,
    as_json: OnlyJson = True,
) -> None:
    """Import a published dataset from files, folders or the Hugging Face hub; print counts as JSON."""
    at_most_one(append=append, replace=replace)
    values = {
        "split": split, "source_split": source_split, "revision": revision, "subset": subset,
        "limit": limit, "image_prefix": image_prefix,
        "decontamination.reference": str(Path(reference).expanduser().absolute()) if reference else None,
        "filters.min_words": min_words, "filters.languages": language or None, "filters.where": where or None,
    }  # fmt: skip
    switches = {
        "decontamination.verified_repositories=true": decontaminate,
        "filters.drop_leaking=true": drop_leaking,
        "filters.drop_ungradable=true": drop_ungradable,
        "mode=append": append,
        "mode=replace": replace,
    }
    lines = [line for line, on in switches.items() if on]
    lines += [f"{key}={json.dumps(value)}" for key, value in values.items() if value is not None]
    if not source.startswith(HUB_PREFIX):
        source = str(Path(source).expanduser().absolute())
    _import_and_sync(format_, name, source, [*lines, *(settings or ())])


def _import_and_sync(format_: str, name: str, source: str, settings: list[str]) -> None:
    """Import with progress output, synchronise the database with the dataset and print the counts."""
    command = [sys.executable, "-m", "engine.orchestrator.importing", "--format", format_]
    command += ["--name", name, "--home", str(django_settings.TRAINYARD_HOME)]
    command += [part for setting in settings for part in ("--set", setting)]
    counts = _run_importer([*command, "--", source])
    try:
        counts["splits"] = datasets.sync(name=name).splits
    except DatabaseError:
        warn(
            "The database is not reachable: the dataset was imported; pages show it after "
            f"`trainyard dataset sync {name}`."
        )
    print_json(counts)


def _run_importer(command: list[str]) -> dict[str, Any]:
    """Run the engine's importer and return its counts."""
    process = subprocess.Popen(
        command, cwd=django_settings.BASE_DIR, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stdout is not None
    last = ""
    try:
        for line in process.stderr:
            last = line.strip() or last
            _show(line)
        printed = process.stdout.read()
    except KeyboardInterrupt:
        # The importer received the signal too and ends between two rows.
        process.wait()
        raise CommandError("stopped; the same command continues the import") from None
    if process.wait() != 0:
        raise CommandError(last or "the importer died")
    counts: dict[str, Any] = json.loads(printed.strip().split("\n")[-1])
    return counts


def _show(line: str) -> None:
    try:
        report = json.loads(line)
        total = f" of {report['total']}" if report["total"] else ""
        progress = f" {report['done']}{total}" if report["done"] else ""
        warn(visible_line(f"{report['message']}{progress}"))
    except (ValueError, KeyError, TypeError):
        return
