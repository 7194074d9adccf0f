"""``manage.py edit_run RUN --name NAME --tag TAG --archive``: change what people write about a run."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from engine.errors import TrainyardError
from engine.terminal import visible_line
from webapp.management.commands._runs import describe, find_run
from webapp.management.commands._terminal import TerminalCommand
from webapp.runs.services import edits


class Command(TerminalCommand):
    """Edit a run."""

    help = "Rename, tag, annotate, file, archive, restore or acknowledge a run."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for the run and its changes."""
        parser.add_argument("run_id", type=int)
        parser.add_argument("--name")
        parser.add_argument("--tag", action="append", default=[], help="tag to add; may be repeated")
        parser.add_argument("--untag", action="append", default=[], help="tag to remove; may be repeated")
        parser.add_argument("--notes")
        parser.add_argument("--experiment", help="created if missing; an empty name removes the run")
        actions = parser.add_mutually_exclusive_group()
        for action in (edits.archive, edits.restore, edits.acknowledge):
            actions.add_argument(f"--{action.__name__}", dest="action", action="store_const", const=action)

    def handle(self, **options: Any) -> None:
        """Save the changes and print a line about the run."""
        run = find_run(options["run_id"])
        tags = None
        if options["tag"] or options["untag"]:
            tags = {*run.tags, *options["tag"]} - set(options["untag"])
        changes = edits.Edit(
            name=options["name"],
            tags=tags,
            notes=options["notes"],
            experiment=options["experiment"],
            version=edits.version_of(run),
        )
        try:
            edits.edit(run=run, changes=changes)
            if options["action"] is not None:
                options["action"](run=run)
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        run.refresh_from_db()
        self.stdout.write(" · ".join([describe(run), *map(visible_line, run.tags)]))
