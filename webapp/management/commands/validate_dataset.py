"""``manage.py validate_dataset NAME``: grade every row without and with its gold patch, as a run.

Requires running services (``manage.py up``). The last line is one JSON object of counts; the exit code is 0
if the run succeeded, regardless of its findings.
"""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from engine.errors import TrainyardError
from webapp.datasets.services import datasets
from webapp.management.commands._runs import add_overrides, describe, parse_overrides, watch
from webapp.management.commands._terminal import TerminalCommand
from webapp.runs.models.runs import Run
from webapp.runs.services import dataset_runs

SUMMARY_KEYS = (
    "dataset", "rows", "valid", "noop_passes", "gold_fails", "flaky", "infra", "quarantined",
    "tests_value", "tests_changed", "tests_added", "tests_without_mutant", "seconds",
)  # fmt: skip


class Command(TerminalCommand):
    """Validate a dataset."""

    help = "Grade every row of a dataset without and with its gold patch; quarantine invalid tasks."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for dataset, repeats, splits and overrides."""
        parser.add_argument("name", help="the dataset")
        parser.add_argument(
            "--repeats", type=int, help="gradings of each row without and with its gold patch"
        )
        parser.add_argument(
            "--split", action="append", default=[], help="validate only this split; may be repeated"
        )
        parser.add_argument(
            "--rows", choices=("all", "unvalidated", "suspect"), help="rows to validate (default: all)"
        )
        add_overrides(parser)
        parser.add_argument("--no-wait", action="store_true", help="queue the run and return")

    def handle(self, **options: Any) -> None:
        """Queue the run, wait for it and print its counts."""
        try:
            run = dataset_runs.launch_validation(
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
