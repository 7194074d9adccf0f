"""``manage.py evaluation_report RUN``: an evaluation's numbers and Best@K curves as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser

from engine.errors import ConfigError
from engine.verifiers.selection.curves import Short
from webapp.evaluations.contexts.report import Question, evaluation_report
from webapp.management.commands._points import add_point, described, find_point
from webapp.management.commands._terminal import TerminalCommand

_CHOICES = ("rule", "k", "keep", "leave_out_unscored", "repo", "verifier", "tests")


class Command(TerminalCommand):
    """Print the report of a stored evaluation."""

    help = "Print pass@1 with its errors, Best@K of rules, budgets, repositories and spending, as JSON."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments that select rollouts, rules and K."""
        add_point(parser)
        parser.add_argument("--rule", default="", help="selection rule (default: all with scores)")
        parser.add_argument("--k", type=int, help="largest K (default: the fewest rollouts of any task)")
        parser.add_argument("--keep", type=int, help="rollouts that hybrid keeps (default: half)")
        parser.add_argument(
            "--short",
            choices=list(Short),
            default=Short.REFUSE,
            help="tasks with fewer than K graded rollouts: none may be (refuse, the default), counted with "
            "all they have, or left out",
        )
        parser.add_argument(
            "--leave-out-unscored",
            action="store_true",
            help="leave out tasks of which a rollout lacks a score of any of the rules",
        )
        parser.add_argument(
            "--verifier", type=int, help="verifier's run whose P(YES) counts (default: that with the most)"
        )
        parser.add_argument(
            "--tests", type=int, help="verifier's run whose passes of tests count (default: as above)"
        )
        parser.add_argument("--repo", default="", help="only tasks of this repository")

    def handle(self, **options: Any) -> None:
        """Print one JSON object."""
        point = find_point(options)
        question = Question(short=Short(options["short"]), **{name: options[name] for name in _CHOICES})
        try:
            found = evaluation_report(point, question)
        except ConfigError as error:
            raise CommandError(str(error)) from None
        if not found.ended:
            self.stderr.write(f"it has not ended: {found.num_open_tasks} tasks are left out")
        if found.curves_error:
            self.stderr.write(f"curves: {found.curves_error}")
        self.stdout.write(json.dumps({**described(point), **asdict(found)}, indent=2))
