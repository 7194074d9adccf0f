"""``manage.py measure_difficulty DATASET``: hand the tasks' measured solve rates to engines."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from engine.errors import TrainyardError
from webapp.services import difficulty


class Command(BaseCommand):
    """Measure solve rates."""

    help = "Write into a dataset's folder how often each task was solved, for dataset.solve_rate_min."

    def add_arguments(self, parser: CommandParser) -> None:
        """The dataset."""
        parser.add_argument("name")

    def handle(self, **options: Any) -> None:
        """Print how many tasks were ever tried."""
        try:
            tasks = difficulty.measure(name=options["name"])
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"dataset {options['name']}: {tasks} tasks have a measured solve rate")
