"""``manage.py measure_difficulty DATASET``: export the tasks' measured solve rates to engines."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from engine.errors import TrainyardError
from webapp.datasets.services import difficulty
from webapp.management.commands._terminal import TerminalCommand


class Command(TerminalCommand):
    """Export measured solve rates."""

    help = "Export the tasks' measured solve rates to a dataset's folder, for dataset.solve_rate_min."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the argument for the dataset."""
        parser.add_argument("name")

    def handle(self, **options: Any) -> None:
        """Export the solve rates and print how many tasks have one."""
        try:
            tasks = difficulty.measure(name=options["name"])
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"dataset {options['name']}: {tasks} tasks have a measured solve rate")
