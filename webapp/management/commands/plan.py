"""``manage.py plan RECIPE --gpus 8xH100``: what a run needs and costs, before anything starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import OperationalError

from engine.config.base import parse_settings
from engine.config.recipes import RECIPES, resolve
from engine.errors import TrainyardError
from engine.planning import RunPlan, plan_configured, render, to_json
from webapp.management.commands._runs import add_overrides
from webapp.management.commands._terminal import TerminalCommand
from webapp.runs.selectors import plans
from webapp.runs.services.drafts import draft


class Command(TerminalCommand):
    """Print the plan of a run."""

    help = "Print memory per GPU, time, GPU-hours and sandboxes of a run, before anything starts."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for recipe, overrides, GPUs and assumptions."""
        parser.add_argument("recipe", help=", ".join(sorted(RECIPES)))
        add_overrides(parser)
        parser.add_argument("--gpus", metavar="COUNTxNAME", help="e.g. 8xH100; default: the H100 it needs")
        parser.add_argument("--assume", action="append", default=[], metavar="KEY=VALUE", help="e.g. mfu=0.4")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, **options: Any) -> None:
        """Print the plan; exit with code 1 if the run does not fit."""
        try:
            plan = self._plan(
                options["recipe"],
                parse_settings(options["set"]),
                gpus=options["gpus"],
                assumptions=parse_settings(options["assume"]),
            )
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(json.dumps(to_json(plan), indent=2) if options["json"] else render(plan))
        if plan.problems:
            raise SystemExit(1)

    def _plan(
        self,
        recipe: str,
        overrides: Mapping[str, Any],
        *,
        gpus: str | None,
        assumptions: Mapping[str, Any],
    ) -> RunPlan:
        """Return the plan, without this yard's datasets and runs while the database is down."""
        try:
            return plans.plan(
                draft(recipe=recipe, overrides=overrides).resolved(), gpus=gpus, assumptions=assumptions
            )
        except OperationalError:
            self.stderr.write("The database is not reachable: nothing follows from datasets and runs.")
            return plan_configured(resolve(recipe, overrides), gpus=gpus, assumptions=assumptions)
