"""``manage.py export_dataset NAME [FILE]``: export a dataset with its answers as JSON lines."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from engine.errors import TrainyardError
from webapp.core.services import audit
from webapp.datasets.services import datasets
from webapp.management.commands._terminal import TerminalCommand


class Command(TerminalCommand):
    """Export a dataset."""

    help = "Write a dataset with its answers to a file that `import_dataset --format trainyard` reads."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for dataset and file."""
        parser.add_argument("name")
        parser.add_argument(
            "file", nargs="?", type=Path, help="path to write (default: NAME.jsonl in this folder)"
        )

    def handle(self, **options: Any) -> None:
        """Write the file atomically, readable by its owner only, and print counts as one line of JSON."""
        name: str = options["name"]
        file: Path = options["file"] or Path(f"{name}.jsonl")
        temporary = file.with_name(f".{file.name}.part")
        rows = 0
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as stream:
                for line in datasets.export_lines(name=name):
                    stream.write(line)
                    rows += 1
            temporary.replace(file)
            audit.record(actor=None, action="dataset.export", target=f"dataset {name}")
        except (TrainyardError, OSError) as error:
            temporary.unlink(missing_ok=True)
            raise CommandError(str(error)) from None
        self.stdout.write(json.dumps({"dataset": name, "exported": rows, "file": str(file)}))
