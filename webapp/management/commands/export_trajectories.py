"""``manage.py export_trajectories --output FILE --set trajectories.runs=[1]``: write chosen trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from engine.errors import TrainyardError
from engine.events.stored_trajectories import write_trajectories
from webapp.management.commands._runs import add_overrides, parse_overrides
from webapp.management.commands._terminal import TerminalCommand
from webapp.rollouts.selectors import learning as learning_reads
from webapp.runs.services import learning


class Command(TerminalCommand):
    """Write the stored trajectories that a query chooses."""

    help = (
        "Write the trajectories that a fine-tuning run would train on, one a line; "
        "'python -m engine.trainer conversations' converts them for other trainers."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for the recipe, its overrides and the file."""
        parser.add_argument("--recipe", default="fine-tune", help="recipe of a fine-tuning run")
        parser.add_argument("--output", type=Path, required=True, help="path of the file to write")
        add_overrides(parser)

    def handle(self, **options: Any) -> None:
        """Write the file and print the count."""
        try:
            query, seed = learning.query_of_recipe(options["recipe"], parse_overrides(options["set"]))
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        found = learning_reads.choose(query, seed=seed)
        try:
            count = write_trajectories(options["output"], learning_reads.stored(found.ids))
        except OSError as error:
            raise CommandError(f"cannot write {options['output']}: {error.strerror}") from None
        self.stdout.write(f"wrote {count} trajectories to {options['output']}")
