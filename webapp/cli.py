"""The command line: ``trainyard``, or ``python -m webapp``.

The commands of a room are in ``webapp/<room>/cli``; this module joins them to one tree. ``manage.py`` has
Django's own commands.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

import django
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connections

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
if not apps.ready:
    try:
        django.setup()
    except ImproperlyConfigured as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)

from engine.errors import TrainyardError
from webapp.accounts import cli as accounts
from webapp.core.cli import command_group, escaped_streams, warn
from webapp.datasets.cli import datasets, imports
from webapp.datasets.cli import runs as dataset_runs
from webapp.endpoints import cli as endpoints
from webapp.evaluations.cli import evaluation, grade, regrade
from webapp.experiments import cli as experiments
from webapp.ingestion import cli as ingestion
from webapp.notifications import cli as notifications
from webapp.rollouts.cli import annotations as annotation_commands
from webapp.rollouts.cli import runs as rollouts
from webapp.rollouts.cli import scanners, search, trajectories
from webapp.runs.cli import alerts, control, launch, machine, models, plan, quickstart, recipes, run_views
from webapp.sandboxes import cli as sandboxes
from webapp.supervisor.cli import doctor, services


def main() -> int:
    """Run the command that the process was started with; return its exit status."""
    # The pool warns of every attempt to connect; the command reports the failure once.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    try:
        return execute(sys.argv[1:])
    finally:
        connections.close_all()


def execute(arguments: Sequence[str]) -> int:
    """Run a command; return its exit status: 2 for wrong arguments or environment, 1 for other errors."""
    with escaped_streams():
        try:
            app(args=list(arguments), prog_name="trainyard")
        except SystemExit as exit_:
            return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        except ImproperlyConfigured as error:
            warn(f"Error: {error}")
            return 2
        except TrainyardError as error:
            warn(f"Error: {error}")
        except OperationalError as error:
            reason = str(error).strip().partition("\n")[0]
            warn(
                f"Error: the database does not answer ({reason}). Start the services with `trainyard up`, or "
                "set DATABASE_URL; `trainyard doctor` checks both."
            )
        return 1


app = command_group("Train software-engineering agents with reinforcement learning and watch every rollout.")
for _command in (
    services.demo,
    services.up,
    quickstart.quickstart,
    doctor.doctor,
    plan.plan,
    launch.collect,
    search.search,
):
    app.command()(_command)

_run = command_group("Launch, list, control, edit and compare runs.")
for _commands in (
    launch.app,
    control.app,
    machine.app,
    experiments.run_app,
    rollouts.app,
    regrade.app,
    scanners.run_app,
):
    _run.add_typer(_commands)
_run.add_typer(run_views.app, name="view")
_run.add_typer(recipes.app, name="recipe")
for _commands in (imports.app, dataset_runs.app):
    datasets.app.add_typer(_commands)
for _commands in (ingestion.trajectories_app, annotation_commands.app):
    trajectories.app.add_typer(_commands)

for _name, _group in (
    ("run", _run),
    ("dataset", datasets.app),
    ("trajectories", trajectories.app),
    ("searches", search.app),
    ("scanner", scanners.app),
    ("evaluation", evaluation.app),
    ("grade", grade.app),
    ("experiment", experiments.app),
    ("alert", alerts.app),
    ("model", models.app),
    ("endpoint", endpoints.app),
    ("notification", notifications.app),
    ("pool", sandboxes.app),
    ("account", accounts.app),
    ("ingest", ingestion.app),
):
    app.add_typer(_group, name=_name)
