"""``manage.py sync_dataset NAME``: mirror a dataset folder in Postgres."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser

from engine.errors import TrainyardError
from webapp.datasets.selectors import health
from webapp.datasets.services import datasets
from webapp.management.commands._terminal import TerminalCommand


class Command(TerminalCommand):
    """Synchronise a dataset."""

    help = "Synchronise the database with a dataset's folder."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the argument for the dataset's name."""
        parser.add_argument("name")

    def handle(self, **options: Any) -> None:
        """Synchronise the dataset, print its number of tasks and how many are mutated."""
        try:
            dataset = datasets.sync(name=options["name"])
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"dataset {dataset.name}: {dataset.num_tasks} tasks {dataset.splits}")
        if (counts := health.mutant_counts(dataset)) is not None:
            self.stdout.write(json.dumps({"mutated_tests": asdict(counts)}))
