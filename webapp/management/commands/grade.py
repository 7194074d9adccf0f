"""``manage.py grade DATASET --predictions FILE``: grade predictions as the official harness does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from webapp.management.commands._terminal import TerminalCommand


class Command(TerminalCommand):
    """Grade predictions."""

    help = (
        "Grade predictions of a dataset; write per-instance reports and a run report; end with JSON counts."
    )
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for predictions, output and settings."""
        parser.add_argument("dataset")
        parser.add_argument("--predictions", required=True, help=".jsonl or .json file, or 'gold'")
        parser.add_argument("--split", default="", help="grade only this split")
        parser.add_argument("--run-id", default="grade", help="name of the folder of logs")
        parser.add_argument("--output", type=Path, default=Path(), help="folder for logs and run report")
        parser.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="e.g. sandbox.backend=docker"
        )

    def handle(self, **options: Any) -> None:
        """Run the engine's grading command in a separate process."""
        source = options["predictions"]
        command = [sys.executable, "-m", "engine.grading", "predictions"]
        command += ["--home", str(settings.TRAINYARD_HOME), "--dataset", options["dataset"]]
        command += ["--predictions", source if source == "gold" else str(Path(source).resolve())]
        command += ["--split", options["split"], "--run-id", options["run_id"]]
        command += ["--output", str(options["output"].resolve())]
        command += [part for setting in options["set"] for part in ("--set", setting)]
        done = subprocess.run(
            command,
            cwd=settings.BASE_DIR,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise CommandError(done.stderr.strip() or "grading failed")
        self.stdout.write(done.stdout.strip())
