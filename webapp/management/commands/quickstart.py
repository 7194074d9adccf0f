"""``manage.py quickstart``: build the quickstart dataset, train the quickstart agent, show progress.

Requires running services (``manage.py up``); ``manage.py demo`` starts them and runs this command. The
dataset is built once. An interrupted run is continued; a finished one is shown again unless ``--fresh`` is
given. The last line is one JSON object about the run; the exit code is 0 only if it succeeded.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.db import OperationalError
from django.utils import timezone

from engine.errors import TrainyardError
from engine.types import RunState
from webapp.datasets.services import datasets
from webapp.management.commands._runs import add_overrides, explained, parse_overrides
from webapp.management.commands._terminal import TerminalCommand
from webapp.runs.contexts.phase import phase_of
from webapp.runs.models.iterations import Iteration
from webapp.runs.models.runs import Run
from webapp.runs.services import runs
from webapp.runs.services.states import TERMINAL

RECIPE = "quickstart"
SUMMARY_KEYS = (
    "iterations",
    "trajectories",
    "solve_rate_first",
    "solve_rate_last",
    "heldout_first",
    "heldout_last",
)
POLL_S = 1.0
LINE_EVERY_S = 3.0


class Command(TerminalCommand):
    """Train the quickstart agent on running services."""

    help = "Train the quickstart agent on running services."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options of the quickstart."""
        parser.add_argument("--fresh", action="store_true", help="start a new run even if one has finished")
        parser.add_argument("--url", default=settings.TRAINYARD_WEB_URL + "/", help="address to print")
        add_overrides(parser)

    def handle(self, **options: Any) -> None:
        """Start or continue the run and print its progress until it has ended."""
        url = options["url"]
        try:
            self._make_dataset()
            run = self._find_or_launch(options)
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        dashboard = f"{url}runs/{run.pk}/"
        self._say(f"Watch it: {dashboard}")
        self._follow(run)
        self._say(json.dumps(summary_of(run, dashboard)))
        if run.state != RunState.SUCCEEDED:
            raise CommandError(f"run {run.pk} {run.state}: {explained(run)}")

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()

    def _make_dataset(self) -> None:
        folder = Path(settings.TRAINYARD_HOME) / "datasets" / RECIPE
        if (folder / "dataset.json").exists():
            datasets.sync(name=RECIPE)
            return
        recipe = f"{RECIPE}-dataset"
        run = Run.objects.filter(recipe=recipe).exclude(state__in=TERMINAL).exclude(state="draft").first()
        if run is None:
            self._say("Making the quickstart dataset from real packages (about three minutes, once) …")
            run = runs.create(recipe=recipe)
            runs.start(run=run)
        self._follow(run)
        if run.state != RunState.SUCCEEDED:
            raise CommandError(f"the quickstart dataset could not be made: {explained(run)}")
        datasets.sync(name=RECIPE)

    def _find_or_launch(self, options: dict[str, Any]) -> Run:
        mine = Run.objects.filter(recipe=RECIPE).order_by("-pk")
        active = mine.exclude(state__in=TERMINAL).exclude(state="draft").first()
        if active is not None:
            self._say(f"Run {active.pk} goes on.")
            return active
        done = mine.filter(state=RunState.SUCCEEDED).first()
        if done is not None and not options["fresh"] and not options["set"]:
            self._say("The quickstart run has finished before; `manage.py launch quickstart` starts another.")
            return done
        run = runs.create(recipe=RECIPE, overrides=parse_overrides(options["set"]))
        runs.start(run=run)
        return run

    def _follow(self, run: Run) -> None:
        """Print progress lines until the run has ended; wait during a database restart."""
        last, said_at = "", 0.0
        while True:
            try:
                run.refresh_from_db()
                line = progress_line(run)
            except OperationalError:
                time.sleep(POLL_S)
                continue
            ended = run.state in TERMINAL
            if line != last and (ended or time.monotonic() - said_at > LINE_EVERY_S):
                self._say(f"{timezone.localtime():%H:%M:%S}  {line}")
                last, said_at = line, time.monotonic()
            if ended:
                return
            time.sleep(POLL_S)


def progress_line(run: Run) -> str:
    """Return a line with a run's state, its current phase and the solve rate of its newest iteration."""
    parts = [f"run {run.pk}", run.state]
    if (phase := phase_of(run)) is not None:
        parts.append(str(phase))
    newest = Iteration.objects.filter(run=run, finished_at__isnull=False).order_by("-index").first()
    if newest is not None and run.state not in TERMINAL and "solve/rate" in newest.metrics:
        parts.append(f"solve rate {newest.metrics['solve/rate']:.2f}")
    if run.reason:
        parts.append(explained(run))
    return " · ".join(parts)


def summary_of(run: Run, dashboard: str) -> dict[str, Any]:
    """Return the summary printed at the end of ``make demo HEADLESS=1``."""
    started, finished = run.queued_at or run.created_at, run.finished_at or timezone.now()
    return {
        "run_id": run.pk,
        "state": run.state,
        **{key: run.summary.get(key) for key in SUMMARY_KEYS},
        "seconds": round((finished - started).total_seconds(), 1),
        "peak_memory_mb": run.summary.get("peak_memory_mb"),
        "dashboard": dashboard,
    }
