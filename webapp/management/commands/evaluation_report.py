"""``manage.py evaluation_report RUN``: an evaluation's numbers and Best@K curves as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from webapp.contexts.evaluation_report import Question, evaluation_report
from webapp.management.commands._runs import find_run
from webapp.selectors import predictions


class Command(BaseCommand):
    """Print the report of a stored evaluation."""

    help = "Print pass@1 with its errors, Best@K of rules, budgets, repositories and spending, as JSON."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments that select rollouts, rules and K."""
        parser.add_argument("run_id", type=int)
        parser.add_argument("--phase", default="", help="train or eval:NAME (default: the newest evaluation)")
        parser.add_argument("--iteration", type=int, help="iteration (default: the newest)")
        parser.add_argument("--rule", default="", help="selection rule (default: all with scores)")
        parser.add_argument("--k", type=int, help="largest K (default: the fewest rollouts of any task)")
        parser.add_argument("--keep", type=int, help="rollouts that hybrid keeps (default: half)")
        parser.add_argument(
            "--verifier", type=int, help="verifier's run whose scores count (default: the newest)"
        )
        parser.add_argument("--repo", default="", help="only tasks of this repository")

    def handle(self, **options: Any) -> None:
        """Print one JSON object."""
        run = find_run(options["run_id"])
        choice = predictions.choose(run, phase=options["phase"], iteration=options["iteration"])
        question = Question(**{name: options[name] for name in ("rule", "k", "keep", "repo", "verifier")})
        found = choice and evaluation_report(
            run, phase=choice.phase, iteration=choice.iteration, question=question
        )
        if not choice or not found:
            raise CommandError(f"run {run.pk} has no such finished rollouts")
        if found.curves_error:
            self.stderr.write(f"curves: {found.curves_error}")
        numbers = {"run": run.pk, "phase": choice.phase, "iteration": choice.iteration, **asdict(found)}
        self.stdout.write(json.dumps(numbers, indent=2))
