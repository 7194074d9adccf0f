"""``manage.py compare_evaluations FIRST SECOND``: two evaluations task by task, as JSON."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from engine.errors import TrainyardError
from webapp.evaluations.contexts.comparison import compare_evaluations
from webapp.management.commands._terminal import TerminalCommand


class Command(TerminalCommand):
    """Print a comparison of two evaluations."""

    help = "Print difference, interval, McNemar's p, gained and lost tasks of two evaluations, as JSON."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the two evaluations."""
        for name in ("first", "second"):
            parser.add_argument(name, metavar="RUN:PHASE:ITERATION", help="such as 12:eval:heldout:40")

    def handle(self, **options: Any) -> None:
        """Print one JSON object."""
        try:
            found = compare_evaluations(options["first"], options["second"])
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        for side in found.open_sides:
            left_out = side.stored.num_open_tasks
            self.stderr.write(f"{side.point.key} has not ended: {left_out} tasks are left out")
        self.stdout.write(json.dumps(found.as_dict(), indent=2))
