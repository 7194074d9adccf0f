"""``manage.py curate --source SOURCE --output NAME``: build a dataset from source trees, as a run."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import CommandError, CommandParser

from engine.errors import TrainyardError
from webapp.datasets.models.datasets import Dataset
from webapp.management.commands._runs import add_overrides, describe, parse_overrides, watch
from webapp.management.commands._terminal import TerminalCommand
from webapp.runs.services import runs

_SYNC_WAIT_S = 60.0


class Command(TerminalCommand):
    """Curate a dataset."""

    help = "Build a dataset from source trees with tests."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for sources, name and overrides."""
        parser.add_argument(
            "--source", action="append", required=True, help="folder, https://HOST/PATH or pip:NAME==VERSION"
        )
        parser.add_argument("--output", required=True, help="name of the dataset")
        add_overrides(parser)
        parser.add_argument("--no-wait", action="store_true", help="queue the run and return")

    def handle(self, **options: Any) -> None:
        """Queue the run and wait for it and for its dataset."""
        overrides = {
            "name": f"curate {options['output']}",
            "curation.sources": options["source"],
            "curation.output": options["output"],
            "curation.extra_tasks": [],
        }
        try:
            run = runs.create(
                recipe="quickstart-dataset", overrides=overrides | parse_overrides(options["set"])
            )
            runs.start(run=run)
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(describe(run))
        if not options["no_wait"]:
            watch(self, run)
            self._wait_for_dataset(run.pk)

    def _wait_for_dataset(self, run_id: int) -> None:
        deadline = time.monotonic() + _SYNC_WAIT_S
        while time.monotonic() < deadline:
            dataset = Dataset.objects.filter(run_id=run_id).first()
            if dataset is not None:
                self.stdout.write(f"dataset {dataset.name}: {dataset.num_tasks} tasks {dataset.splits}")
                return
            time.sleep(0.3)
        raise CommandError("the dataset was made but not synchronised; run `manage.py sync_dataset NAME`")
