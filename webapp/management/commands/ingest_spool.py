"""``manage.py ingest_spool RUN_DIR``: store the events of a run folder without its engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from engine.errors import TrainyardError
from webapp.ingestion.services import ingest
from webapp.management.commands._runs import find_run
from webapp.management.commands._terminal import TerminalCommand


class Command(TerminalCommand):
    """Ingest a spool file."""

    help = "Store the events of a run folder's events.jsonl that are not stored yet."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for the folder and, if its name is not the run's number, the run."""
        parser.add_argument("run_dir", type=Path)
        parser.add_argument("--run", type=int, help="the run's number (default: the folder's name)")

    def handle(self, **options: Any) -> None:
        """Store the events and print the number of new ones."""
        folder: Path = options["run_dir"]
        number = options["run"]
        if number is None:
            if not folder.resolve().name.isdigit():
                raise CommandError(f"{folder} is not named after a run; say which one with --run")
            number = int(folder.resolve().name)
        run = find_run(number)
        try:
            receipt = ingest.ingest_spool(run_id=run.pk, path=folder / "events.jsonl")
        except (TrainyardError, OSError) as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"run {run.pk}: {receipt.accepted} new events, stored up to {receipt.acked_seq}")
