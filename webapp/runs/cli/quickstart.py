"""The command ``quickstart``: build the quickstart dataset, train the quickstart agent, show progress.

Requires running services (``trainyard up``); ``trainyard demo`` starts them and runs this command.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from django.conf import settings as django_settings
from django.db import OperationalError
from django.utils import timezone

from engine.config.base import parse_settings
from engine.types import RunState
from webapp.core.cli import AsJson, CommandError, Settings, print_json
from webapp.datasets.services import datasets
from webapp.runs.cli.describe import explained
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
_Say = Callable[[str], None]


def quickstart(
    fresh: Annotated[bool, typer.Option("--fresh", help="Start a new run even if one has finished.")] = False,
    url: Annotated[str, typer.Option(help="Address to print.")] = f"{django_settings.TRAINYARD_WEB_URL}/",
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Train the quickstart agent on running services.

    The dataset is built once. An interrupted run continues; a finished one is shown again without --fresh.
    The last line is one JSON object about the run; with --json it is the only one on standard output.
    """
    say = partial(print, file=sys.stderr if as_json else sys.stdout, flush=True)
    _make_dataset(say)
    run = _find_or_launch(say, fresh=fresh, settings=settings or ())
    dashboard = f"{url}runs/{run.pk}/"
    say(f"Watch it: {dashboard}")
    _follow(run, say)
    print_json(summary_of(run, dashboard))
    if run.state != RunState.SUCCEEDED:
        raise CommandError(f"run {run.pk} {run.state}: {explained(run)}")


def _make_dataset(say: _Say) -> None:
    folder = Path(django_settings.TRAINYARD_HOME) / "datasets" / RECIPE
    if (folder / "dataset.json").exists():
        datasets.sync(name=RECIPE)
        return
    recipe = f"{RECIPE}-dataset"
    run = Run.objects.filter(recipe=recipe).exclude(state__in=TERMINAL).exclude(state="draft").first()
    if run is None:
        say("Making the quickstart dataset from real packages (about three minutes, once) …")
        run = runs.create(recipe=recipe)
        runs.start(run=run)
    _follow(run, say)
    if run.state != RunState.SUCCEEDED:
        raise CommandError(f"the quickstart dataset could not be made: {explained(run)}")
    datasets.sync(name=RECIPE)


def _find_or_launch(say: _Say, *, fresh: bool, settings: Sequence[str]) -> Run:
    quickstarts = Run.objects.filter(recipe=RECIPE).order_by("-pk")
    active = quickstarts.exclude(state__in=TERMINAL).exclude(state="draft").first()
    if active is not None:
        say(f"Run {active.pk} goes on.")
        return active
    done = quickstarts.filter(state=RunState.SUCCEEDED).first()
    if done is not None and not fresh and not settings:
        say("The quickstart run has finished before; `trainyard run launch quickstart` starts another.")
        return done
    run = runs.create(recipe=RECIPE, overrides=parse_settings(settings or ()))
    runs.start(run=run)
    return run


def _follow(run: Run, say: _Say) -> None:
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
            say(f"{timezone.localtime():%H:%M:%S}  {line}")
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
