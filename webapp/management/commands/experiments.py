"""``manage.py experiments [--create NAME]``: list experiments, or create one."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from engine.errors import ConfigError
from engine.terminal import visible_line
from webapp.experiments import selectors as reads
from webapp.experiments import services as experiments
from webapp.management.commands._terminal import TerminalCommand


class Command(TerminalCommand):
    """List and create experiments."""

    help = "List experiments with their number of runs; `manage.py runs --experiment NAME` lists the runs."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options that create one."""
        parser.add_argument("--create", metavar="NAME")
        parser.add_argument("--description", default="")

    def handle(self, **options: Any) -> None:
        """Create the named experiment, then print all of them."""
        if options["create"] is not None:
            try:
                experiments.create(name=options["create"], description=options["description"])
            except ConfigError as error:
                raise CommandError(str(error)) from None
        for row in reads.list_experiments():
            counts = vars(row)
            parts = (row.name, f"{counts['num_runs']} runs, {counts['num_active']} active", row.description)
            self.stdout.write(visible_line(" · ".join(filter(None, parts))))
