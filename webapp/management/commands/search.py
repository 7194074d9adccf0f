"""``manage.py search WORDS [--run RUN] [--place PLACE]``: search all trajectories for words."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from engine.terminal import visible_line
from webapp.core.contexts.frame import trajectory_url
from webapp.management.commands._terminal import TerminalCommand
from webapp.rollouts.contexts.snippets import snippet, words_pattern
from webapp.rollouts.selectors.search import MOST_CHARS, PLACES, TrajectoryFilters, search


class Command(TerminalCommand):
    """Search trajectories."""

    help = "Search all trajectories for words and print the first matching texts of each."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the words and the filters of the page."""
        parser.add_argument("words", help='words, "a phrase", or, -without')
        parser.add_argument("--run", type=int)
        parser.add_argument("--place", default="", choices=PLACES, help="observations: of a run or a task")
        for name in ("task", "verdict", "termination", "phase"):
            parser.add_argument(f"--{name}", default="")
        parser.add_argument("-n", type=int, default=20, help="number of trajectories to list")

    def handle(self, **options: Any) -> None:
        """Print the matching texts and the number of trajectories."""
        if len(options["words"]) > MOST_CHARS:
            raise CommandError(f"words: expected at most {MOST_CHARS} characters")
        names = ("run", "place", "task", "verdict", "termination", "phase")
        filters = TrajectoryFilters(q=options["words"], **{name: options[name] for name in names})
        found = search(filters, before=None, size=max(1, options["n"]), with_answers=True)
        pattern = words_pattern(options["words"])
        for row in found.rows:
            for match in found.matches.get(row.pk, []):
                place = trajectory_url(row.run_id, row.phase, row.iteration, row.task_key, row.index)
                piece = snippet(match, pattern)
                self.stdout.write(visible_line(f"{place}{piece.query} {piece.text}"))
        more = " or more" if found.capped else ""
        self.stdout.write(f"{len(found.rows)} of {found.total}{more} trajectories")
