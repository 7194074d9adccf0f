"""``manage.py run_log RUN``: print the end of a run's log."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from webapp.management.commands._runs import find_run
from webapp.management.commands._terminal import TerminalCommand
from webapp.runs.selectors.logs import log_tail


class Command(TerminalCommand):
    """Print the end of a run's log."""

    help = "Print the end of a run's log, wherever its process runs."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the run's number and the size."""
        parser.add_argument("run_id", type=int)
        parser.add_argument("--bytes", type=int, default=64 * 1024, help="size of the part that is printed")

    def handle(self, **options: Any) -> None:
        """Print the lines."""
        run = find_run(options["run_id"])
        self.stdout.write(log_tail(run.pk, most=max(1, options["bytes"])).text)
