"""``manage.py what_if RUN ITERATION TASK --set preset=grpo``: advantages under another objective."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from engine.errors import TrainyardError
from webapp.management.commands._runs import add_overrides, find_run, parse_overrides
from webapp.management.commands._terminal import TerminalCommand
from webapp.rollouts.contexts.what_if import counterfactual


class Command(TerminalCommand):
    """Print counterfactual advantages of a stored group."""

    help = "Print the advantages and masks that a stored group would have under other settings, as JSON."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for the group and the overrides."""
        parser.add_argument("run_id", type=int)
        parser.add_argument("iteration", type=int)
        parser.add_argument("task", help="id of the task")
        add_overrides(parser)

    def handle(self, **options: Any) -> None:
        """Print the members as one JSON object."""
        try:
            found = counterfactual(
                find_run(options["run_id"]),
                phase="train",
                iteration=options["iteration"],
                task_key=options["task"],
                settings=parse_overrides(options["set"]),
            )
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        if found is None:
            where = f"iteration {options['iteration']} of run {options['run_id']}"
            raise CommandError(f"there is no group of task {options['task']} in {where}")
        members = [dataclasses.asdict(member) for member in found.members]
        self.stdout.write(
            json.dumps(
                {"algorithm": found.config.model_dump(mode="json"), "members": members, "notes": found.notes}
            )
        )
