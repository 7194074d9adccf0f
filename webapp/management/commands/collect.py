"""``manage.py collect DATASET --model MODEL --samples 8``: collect graded rollouts of a model, as a run."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from engine.errors import TrainyardError
from webapp.management.commands._runs import (
    add_overrides,
    describe,
    find_experiment,
    parse_overrides,
    watch,
)
from webapp.management.commands._terminal import TerminalCommand
from webapp.runs.services import collection, runs
from webapp.runs.services.collection import CollectionRequest

_CHOICES = (
    *("dataset", "model", "endpoint", "recipe", "split", "samples", "concurrency", "temperature", "limit"),
    *("shuffle", "skip"),
)
"""Options that are passed on under their own names."""


class Command(TerminalCommand):
    """Collect rollouts."""

    help = "Collect graded rollouts of a model on a dataset; a killed collection goes on where it was."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for dataset, model, tasks and sampling."""
        parser.add_argument("dataset")
        parser.add_argument(
            "--model",
            required=True,
            help="checkpoint (folder, OWNER/NAME, run:ID, builtin:NAME), oracle or noop; with --endpoint the "
            "endpoint's name of a model",
        )
        parser.add_argument(
            "--endpoint", default="", help="name of an endpoint (`manage.py endpoint` lists them)"
        )
        parser.add_argument("--recipe", default=collection.RECIPE, help="recipe of kind rollout")
        parser.add_argument("--split", help="split of the dataset")
        parser.add_argument("--samples", type=int, help="rollouts per task")
        parser.add_argument("--concurrency", type=int, help="rollouts at once")
        parser.add_argument("--temperature", type=float, help="sampling temperature")
        parser.add_argument("--start", type=int, help="index of the first task")
        parser.add_argument("--limit", type=int, help="number of tasks")
        parser.add_argument(
            "--shuffle", action="store_true", help="shuffle the tasks (seed: --set seed=N) first"
        )
        parser.add_argument(
            "--skip",
            choices=["none", "finished", "solved"],
            default="none",
            help="leave out what earlier collections of this model on the dataset have: finished rollouts, "
            "or tasks that they solved",
        )
        add_overrides(parser)
        parser.add_argument("--experiment", help="name of its experiment, created if missing")
        parser.add_argument("--wait", action="store_true", help="print progress until the run has ended")

    def handle(self, **options: Any) -> None:
        """Queue the run; with ``--wait`` exit with code 1 unless it succeeded."""
        request = CollectionRequest(
            **{name: options[name] for name in _CHOICES},
            start_index=options["start"],
            settings=parse_overrides(options["set"]),
        )
        try:
            with transaction.atomic():  # a run that is refused leaves no experiment
                run = collection.create(request, experiment=find_experiment(options["experiment"]))
                runs.start(run=run)
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(describe(run))
        skipped = run.config["collection"]["skip_runs"]
        if skipped:
            self.stdout.write(f"{options['skip']} in run {', '.join(skipped)}: left out")
        elif options["skip"] != "none":
            self.stdout.write("no earlier collection of this model on the dataset: nothing is left out")
        self.stdout.write(f"open:   {settings.TRAINYARD_WEB_URL}/runs/{run.pk}/")
        self.stdout.write(f"export: manage.py export_predictions {run.pk} --output predictions.jsonl")
        if options["wait"]:
            watch(self, run)
