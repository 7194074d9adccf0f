"""``manage.py launch RECIPE --set key=value --wait``: create a run from a recipe and queue it.

With ``--each 'policy.checkpoint=["builtin:quickstart", "run:3"]' --experiment NAME`` there is one run for
each value, and the experiment's page compares them.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from engine.config.recipes import RECIPES
from engine.errors import TrainyardError
from webapp.management.commands._runs import (
    add_overrides,
    describe,
    find_experiment,
    parse_each,
    parse_overrides,
    watch,
)
from webapp.management.commands._terminal import TerminalCommand
from webapp.runs.services import runs


class Command(TerminalCommand):
    """Create and start a run."""

    help = "Create a run from a recipe and queue it."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for recipe, overrides and waiting."""
        parser.add_argument("recipe", help=", ".join(sorted(RECIPES)))
        add_overrides(parser)
        parser.add_argument(
            "--each",
            metavar="KEY=[VALUE, ...]",
            help='create one run for each value of a setting, e.g. \'policy.checkpoint=["run:3", "run:4"]\'',
        )
        parser.add_argument("--experiment", help="name of its experiment, created if missing")
        parser.add_argument("--draft", action="store_true", help="create the run without queueing it")
        parser.add_argument("--wait", action="store_true", help="print progress until the run has ended")

    def handle(self, **options: Any) -> None:
        """Create and queue the runs; with ``--wait`` exit with code 1 unless they succeeded."""
        given = parse_overrides(options["set"])
        try:
            with transaction.atomic():  # a run that is refused leaves neither others nor an experiment
                experiment = find_experiment(options["experiment"])
                made = [
                    runs.create(recipe=options["recipe"], overrides={**given, **own}, experiment=experiment)
                    for own in parse_each(options["each"], options["recipe"], given)
                ]
                if not options["draft"]:
                    for run in made:
                        runs.start(run=run)
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        for run in made:
            self.stdout.write(describe(run))
        if options["wait"] and not options["draft"]:
            for run in made:
                watch(self, run)
