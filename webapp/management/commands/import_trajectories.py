"""``manage.py import_trajectories --format r2e-gym FILE``: import foreign trajectories as a run.

The engine implements the formats; it reads the file in a separate process and prints events. To add a
format: a module in ``engine.datasets`` with the same command line, and a name in ``_READERS``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from engine.errors import TrainyardError
from webapp.ingestion.services import trajectories
from webapp.management.commands._runs import describe
from webapp.management.commands._terminal import TerminalCommand

_READERS = {
    "r2e-gym": "engine.datasets.trajectories_r2e",
    "conversations": "engine.datasets.trajectories_conversations",
    "atif": "engine.datasets.trajectories_atif",
}


class Command(TerminalCommand):
    """Import trajectories."""

    help = "Import trajectories from a file into a run of their own."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for format and file."""
        parser.add_argument("--format", choices=sorted(_READERS), required=True)
        parser.add_argument("file", type=Path)

    def handle(self, **options: Any) -> None:
        """Import the file and print the run, and on stderr what its reader left out."""
        file: Path = options["file"]
        if not file.is_file():
            raise CommandError(f"there is no file {file}")
        command = [sys.executable, "-m", _READERS[options["format"]], str(file.resolve())]
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                command, cwd=settings.BASE_DIR, stdout=output, stderr=subprocess.PIPE, check=False
            )
            if done.returncode:
                raise CommandError(done.stderr.decode(errors="replace").strip() or "the file cannot be read")
            output.seek(0)
            try:
                run = trajectories.import_lines(file_name=file.name, lines=output)
            except TrainyardError as error:
                raise CommandError(str(error)) from None
        if told := done.stderr.decode(errors="replace").strip():
            self.stderr.write(told)
        self.stdout.write(f"{describe(run)}: {run.trajectories.count()} trajectories")
