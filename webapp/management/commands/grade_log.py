"""``manage.py grade_log --row ROW.json --log TEST_OUTPUT``: grade a stored log without a sandbox."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from webapp.management.commands._terminal import TerminalCommand


class Command(TerminalCommand):
    """Grade a stored log."""

    help = "Print the official per-instance report of a stored test log."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for the row and the log."""
        parser.add_argument(
            "--row", type=Path, required=True, help="file with the dataset's row (a JSON object)"
        )
        parser.add_argument("--log", type=Path, required=True, help="the test log")

    def handle(self, **options: Any) -> None:
        """Run the engine's grading command in a separate process."""
        command = [sys.executable, "-m", "engine.grading", "log"]
        command += ["--row", str(options["row"].resolve()), "--log", str(options["log"].resolve())]
        done = subprocess.run(command, cwd=settings.BASE_DIR, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CommandError(done.stderr.strip() or "grading failed")
        self.stdout.write(done.stdout.strip())
