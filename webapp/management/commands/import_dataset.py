"""``manage.py import_dataset --format F --name N SOURCE``: import a published dataset.

The engine imports in a separate process; no service needs to run. A killed import changes no dataset and is
continued by the same command. The last line is one JSON object of counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.db import Error as DatabaseError

from engine.config.importing import FORMATS
from engine.config.places import HUB_PREFIX
from engine.errors import TrainyardError
from engine.terminal import visible_line
from webapp.datasets.services import datasets
from webapp.management.commands._runs import add_overrides
from webapp.management.commands._terminal import TerminalCommand

_VALUES = {
    "split": "split", "source_split": "source_split", "revision": "revision", "subset": "subset",
    "limit": "limit", "image_prefix": "image_prefix", "reference": "decontamination.reference",
    "min_words": "filters.min_words", "language": "filters.languages", "where": "filters.where",
}  # fmt: skip
_SWITCHES = {
    "decontaminate": ("decontamination.verified_repositories", "true"),
    "drop_leaking": ("filters.drop_leaking", "true"),
    "drop_ungradable": ("filters.drop_ungradable", "true"),
    "append": ("mode", "append"),
    "replace": ("mode", "replace"),
}


class Command(TerminalCommand):
    """Import a dataset."""

    help = "Import a published dataset from files, folders or the Hugging Face hub."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for format, name, source and filters."""
        parser.add_argument("--format", required=True, choices=list(FORMATS))
        parser.add_argument("--name", required=True, help="name of the dataset to create")
        parser.add_argument("source", help="file, folder, or hf:OWNER/NAME")
        parser.add_argument("--split", help="put every row into this split")
        parser.add_argument("--source-split", help="read only this split of the source")
        parser.add_argument("--revision", help="branch, tag or commit at the hub")
        parser.add_argument("--subset", help="configuration of the hub's dataset")
        parser.add_argument("--limit", type=int, help="number of rows to read")
        mode = parser.add_mutually_exclusive_group()
        mode.add_argument("--append", action="store_true", help="add the rows to an existing dataset")
        mode.add_argument("--replace", action="store_true", help="replace an existing dataset")
        parser.add_argument(
            "--decontaminate", action="store_true", help="exclude repositories of SWE-bench Verified"
        )
        parser.add_argument("--reference", help="file with the rows of a benchmark to decontaminate from")
        parser.add_argument("--language", action="append", help="keep only this language; may be repeated")
        parser.add_argument("--where", action="append", help="e.g. 'patch_lines<=200'; may be repeated")
        parser.add_argument("--min-words", type=int, help="minimum length of a problem statement")
        parser.add_argument(
            "--drop-leaking", action="store_true", help="exclude rows whose statement quotes the fix"
        )
        parser.add_argument(
            "--drop-ungradable", action="store_true", help="exclude rows that cannot be graded here"
        )
        parser.add_argument("--image-prefix", help="registry to prepend to image names")
        add_overrides(parser)

    def handle(self, **options: Any) -> None:
        """Import with progress output, mirror the dataset in the database and print the counts."""
        source = options["source"]
        if not source.startswith(HUB_PREFIX):
            source = str(Path(source).expanduser().absolute())
        command = [sys.executable, "-m", "engine.orchestrator.importing", "--format", options["format"]]
        command += ["--name", options["name"], "--home", str(settings.TRAINYARD_HOME)]
        if options["reference"]:
            options["reference"] = str(Path(options["reference"]).expanduser().absolute())
        for setting in _settings(options):
            command += ["--set", setting]
        counts = self._import([*command, "--", source])
        try:
            dataset = datasets.sync(name=options["name"])
            counts["splits"] = dataset.splits
        except DatabaseError:
            self.stderr.write(
                "the database is away: the dataset is there, pages show it after `manage.py sync_dataset "
                f"{options['name']}`"
            )
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(json.dumps(counts))

    def _import(self, command: list[str]) -> dict[str, Any]:
        """Run the engine's importer and return its counts."""
        process = subprocess.Popen(
            command, cwd=settings.BASE_DIR, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        assert process.stdout is not None
        last = ""
        try:
            for line in process.stderr:
                last = line.strip() or last
                self._show(line)
            printed = process.stdout.read()
        except KeyboardInterrupt:
            # The importer received the signal too and ends between two rows.
            process.wait()
            raise CommandError("stopped; the same command goes on where it was") from None
        if process.wait() != 0:
            raise CommandError(last or "the importer died")
        counts: dict[str, Any] = json.loads(printed.strip().split("\n")[-1])
        return counts

    def _show(self, line: str) -> None:
        try:
            report = json.loads(line)
            total = f" of {report['total']}" if report["total"] else ""
            progress = f" {report['done']}{total}" if report["done"] else ""
            self.stderr.write(visible_line(f"{report['message']}{progress}"))
        except (ValueError, KeyError, TypeError):
            return


def _settings(options: dict[str, Any]) -> list[str]:
    """Return the options as settings of an import; those of ``--set`` come last."""
    found = [f"{setting}={value}" for name, (setting, value) in _SWITCHES.items() if options[name]]
    for name, setting in _VALUES.items():
        if options[name] is not None:
            found.append(f"{setting}={json.dumps(options[name])}")
    return [*found, *options["set"]]
