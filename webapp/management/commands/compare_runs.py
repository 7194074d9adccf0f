"""``manage.py compare_runs RUN RUN [--metric KEY]``: lay runs over each other, as JSON."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from webapp.experiments.contexts.run_comparison import AXES, build_series, summarise_comparison
from webapp.management.commands._terminal import TerminalCommand


class Command(TerminalCommand):
    """Print a comparison of runs."""

    help = "Print the settings that differ between runs, the metrics that they have, and points of some."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the runs, the metrics and the axis."""
        parser.add_argument("runs", nargs="+", metavar="RUN")
        parser.add_argument("--metric", action="append", default=[], help="metric to print; may be repeated")
        parser.add_argument("--x", choices=[axis for axis, _ in AXES], default=AXES[0][0])

    def handle(self, **options: Any) -> None:
        """Print one JSON object."""
        try:
            found = summarise_comparison(options["runs"])
            if options["metric"]:
                view = {"keys": ",".join(options["metric"]), "x": options["x"]}
                found["series"] = build_series(options["runs"], view)["runs"]
        except ValueError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(json.dumps(found, indent=2))
