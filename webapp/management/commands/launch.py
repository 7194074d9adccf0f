"""``manage.py launch RECIPE --set key=value --wait``: create a run from a recipe and queue it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from engine.config.recipes import RECIPES
from engine.errors import TrainyardError
from webapp.management.commands._runs import (
    add_overrides,
    describe,
    find_experiment,
    parse_overrides,
    watch,
)
from webapp.services import runs


class Command(BaseCommand):
    """Create and start a run."""

    help = "Create a run from a recipe and queue it."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for recipe, overrides and waiting."""
        parser.add_argument("recipe", help=", ".join(sorted(RECIPES)))
        add_overrides(parser)
        parser.add_argument("--experiment", help="name of its experiment, created if missing")
        parser.add_argument("--draft", action="store_true", help="create the run without queueing it")
        parser.add_argument("--wait", action="store_true", help="print progress until the run has ended")

    def handle(self, **options: Any) -> None:
        """Create and queue the run; with ``--wait`` exit with code 1 unless it succeeded."""
        try:
            with transaction.atomic():  # a run that is refused leaves no experiment
                run = runs.create(
                    recipe=options["recipe"],
                    overrides=parse_overrides(options["set"]),
                    experiment=find_experiment(options["experiment"]),
                )
                if not options["draft"]:
                    runs.start(run=run)
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(describe(run))
        if options["wait"] and not options["draft"]:
            watch(self, run)
