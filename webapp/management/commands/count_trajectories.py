"""``manage.py count_trajectories --set trajectories.runs=[1]``: what a fine-tuning run would train on."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser

from engine.errors import TrainyardError
from webapp.management.commands._runs import add_overrides, parse_overrides
from webapp.management.commands._terminal import TerminalCommand
from webapp.rollouts.selectors import learning as learning_reads
from webapp.runs.services import learning


class Command(TerminalCommand):
    """Count the stored trajectories that a query chooses."""

    help = "Print the counts of the trajectories that a fine-tuning run would train on, as one line of JSON."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for the recipe and its overrides."""
        parser.add_argument("--recipe", default="fine-tune", help="recipe of a fine-tuning run")
        add_overrides(parser)
        parser.add_argument("--ids", action="store_true", help="print the numbers of the trajectories, too")

    def handle(self, **options: Any) -> None:
        """Print the counts."""
        try:
            query, seed = learning.query_of_recipe(options["recipe"], parse_overrides(options["set"]))
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        found = asdict(learning_reads.choose(query, seed=seed))
        ids = found.pop("ids")
        counts = {"trajectories": len(ids), **found, "runs": dict(found["runs"])}
        self.stdout.write(json.dumps(counts | ({"ids": ids} if options["ids"] else {})))
