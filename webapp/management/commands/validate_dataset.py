"""``manage.py validate_dataset NAME``: grade every row untouched and with its gold patch, as a run.

Wants running services (``manage.py up``). The last line is one JSON object of counts; the exit code is 0
only if the run succeeded, whatever it found.
"""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from engine.errors import TrainyardError
from webapp.management.commands._runs import add_overrides, describe, parse_overrides, watch
from webapp.models import Run
from webapp.services import datasets, validations

SUMMARY_KEYS = (
    "dataset", "rows", "valid", "noop_passes", "gold_fails", "flaky", "infra", "quarantined", "seconds",
)  # fmt: skip


class Command(BaseCommand):
    """Validate a dataset."""

    help = "Grade every row of a dataset untouched and with its gold patch; quarantine what is wrong."

    def add_arguments(self, parser: CommandParser) -> None:
        """Dataset, repeats, splits, overrides."""
        parser.add_argument("name", help="the dataset")
        parser.add_argument(
            "--repeats", type=int, help="gradings of each row untouched, and with its gold patch"
        )
        parser.add_argument("--split", action="append", default=[], help="only this split; may be repeated")
        parser.add_argument("--rows", choices=("all", "unvalidated", "suspect"), help="which rows (all)")
        add_overrides(parser)
        parser.add_argument("--no-wait", action="store_true", help="only queue the run")

    def handle(self, **options: Any) -> None:
        """Wait for the run and print its counts."""
        try:
            run = validations.launch(
                name=options["name"],
                repeats=options["repeats"],
                splits=options["split"],
                rows=options["rows"],
                overrides=parse_overrides(options["set"]),
            )
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        if options["no_wait"]:
            self.stdout.write(describe(run))
            return
        try:
            watch(self, run)
        finally:
            self._tell(run)

    def _tell(self, run: Run) -> None:
        if run.summary:
            datasets.sync(name=run.summary["dataset"])
            self.stdout.write(json.dumps({key: run.summary.get(key) for key in SUMMARY_KEYS}))
