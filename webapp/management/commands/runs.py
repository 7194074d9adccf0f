"""``manage.py runs``: list the newest runs, one line each."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from webapp.experiments.models import Experiment
from webapp.experiments.selectors import experiment_named
from webapp.management.commands._runs import describe
from webapp.management.commands._terminal import TerminalCommand
from webapp.runs.selectors.runs import RunFilters, list_runs


class Command(TerminalCommand):
    """List runs."""

    help = "List the newest runs."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the filter options."""
        parser.add_argument("--state", default="", help="show only runs in this state, or `active` ones")
        parser.add_argument("--kind", default="")
        parser.add_argument("--tag", default="", help="show only runs with this tag")
        parser.add_argument("--experiment", help="show only runs of the experiment with this name")
        parser.add_argument("--archived", action="store_true", help="show archived runs too")
        parser.add_argument("-n", type=int, default=20, help="number of runs to list")

    def handle(self, **options: Any) -> None:
        """Print the runs and their total number."""
        experiment = None
        if options["experiment"] is not None:
            try:
                experiment = experiment_named(options["experiment"])
            except Experiment.DoesNotExist as error:
                raise CommandError(str(error)) from None
        filters = RunFilters(
            state=options["state"],
            kind=options["kind"],
            tag=options["tag"],
            experiment=experiment.pk if experiment is not None else None,
            archived="all" if options["archived"] else "",
        )
        page = list_runs(filters, number=1, size=max(1, options["n"]))
        for run in page.rows:
            self.stdout.write(describe(run))
        self.stdout.write(f"{len(page.rows)} of {page.total} runs")
