"""``manage.py clone_run RUN --set key=value``: create a draft with some changes."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from engine.errors import TrainyardError
from webapp.management.commands._runs import add_overrides, describe, find_run, parse_overrides
from webapp.management.commands._terminal import TerminalCommand
from webapp.runs.services import runs


class Command(TerminalCommand):
    """Clone a run."""

    help = "Create a draft with another run's configuration and some changes."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for the run and its overrides."""
        parser.add_argument("run_id", type=int)
        add_overrides(parser)
        parser.add_argument("--start", action="store_true", help="queue the run at once")

    def handle(self, **options: Any) -> None:
        """Create the draft and print a line about it."""
        try:
            run = runs.clone(run=find_run(options["run_id"]), overrides=parse_overrides(options["set"]))
            if options["start"]:
                runs.start(run=run)
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(describe(run))
