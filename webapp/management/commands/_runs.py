"""Helpers of the run commands: parse overrides, find a run, watch a run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from engine.config.recipes import resolve
from engine.errors import TrainyardError
from engine.reading import parse_json
from engine.terminal import visible_line
from webapp.core.contexts.words import in_words
from webapp.experiments import services as experiments
from webapp.experiments.models import Experiment
from webapp.management.commands._terminal import TerminalCommand
from webapp.runs.contexts.phase import phase_of
from webapp.runs.models.runs import Run
from webapp.runs.selectors import runs as run_reads
from webapp.runs.services import runs
from webapp.runs.services.states import TERMINAL

_POLL_S = 0.5


def parse_overrides(settings: Iterable[str]) -> dict[str, Any]:
    """Parse ``["trainer.iterations=5"]`` to a dict; values are JSON if they parse, else text."""
    overrides: dict[str, Any] = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key:
            raise CommandError(f"--set wants KEY=VALUE, not '{setting}'")
        try:
            overrides[key] = parse_json(value, parse_constant=str)
        except ValueError:
            overrides[key] = value
    return overrides


def parse_each(setting: str | None, recipe: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the overrides of each run of ``--each``, with a name that tells its value; one without any.

    Raises:
        CommandError: the values are no list.
        ConfigError: no such recipe.
    """
    if setting is None:
        return [{}]
    ((key, values),) = parse_overrides([setting]).items()
    if not isinstance(values, list) or not values:
        raise CommandError(f"--each wants KEY=[VALUE, ...] with at least one value, not '{setting}'")
    name = given.get("name", resolve(recipe).name)
    return [{key: value, "name": f"{name} ({value})"[:200]} for value in values]


def find_run(run_id: int) -> Run:
    """Return the run. Raises CommandError if it does not exist."""
    run = Run.objects.filter(pk=run_id).first()
    if run is None:
        raise CommandError(f"there is no run {run_id}; `manage.py runs` lists them")
    return run


def add_overrides(parser: CommandParser) -> None:
    """Add the ``--set`` option."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting, e.g. seed=3"
    )


class RunCommand(TerminalCommand):
    """Base command for an action on one run; subclasses name a function of ``runs.services.runs``."""

    action = ""

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the argument for the run's number."""
        parser.add_argument("run_id", type=int)

    def handle(self, **options: Any) -> None:
        """Request the action; the engine acknowledges it later."""
        run = find_run(options["run_id"])
        try:
            getattr(runs, self.action)(run=run)
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(describe(run))


def describe(run: Run) -> str:
    """Return a one-line description of a run."""
    parts = [f"run {run.pk}", run.kind, run.state]
    if run.current_iteration is not None:
        parts.append(f"iteration {run.current_iteration + 1} of {run.total_iterations}")
    if (phase := phase_of(run)) is not None:
        parts.append(str(phase))
    if run.collection:
        parts += describe_collection(run.collection)
    if condition := run_reads.condition_of(run):
        parts.append(condition)
    if run.reason:
        parts.append(explained(run))
    return visible_line(" · ".join([*parts, run.name]))


def explained(run: Run) -> str:
    """Return why a run ended, with the text behind it."""
    return visible_line(f"{run.reason} ({run.reason_detail})" if run.reason_detail else run.reason)


def describe_collection(state: Mapping[str, Any]) -> list[str]:
    """Return the numbers of a collection, as in ``engine.events.types.CollectionProgress``."""
    parts = [f"{state['solved']} of {state['graded']} solved"]
    endings = [(reason, count) for reason, count in state.get("endings", {}).items() if count]
    if endings:
        parts.append(", ".join(f"{in_words(reason)} {count}" for reason, count in endings))
    parts.append(f"{state['running']} running, {state['steps']} steps")
    if state["lost"]:
        parts.append(f"{state['lost']} lost to infrastructure")
    if state["per_hour"]:
        parts.append(f"{state['per_hour']:,.0f} an hour")
    if state["cost"] is not None:
        parts.append(f"{state['cost']:.2f} US dollars")
    return parts


def find_experiment(name: str | None) -> Experiment | None:
    """Return the experiment of this name, created if missing; None without a name."""
    if name is None:
        return None
    return Experiment.objects.filter(name=name).first() or experiments.create(name=name)


def watch(command: BaseCommand, run: Run) -> None:
    """Print progress lines until the run has ended. Raises CommandError unless it succeeded."""
    last = ""
    while True:
        run.refresh_from_db()
        line = describe(run)
        if line != last:
            command.stdout.write(f"{timezone.now():%H:%M:%S} {line}")
            command.stdout.flush()
            last = line
        if run.state in TERMINAL:
            break
        time.sleep(_POLL_S)
    if run.state != "succeeded":
        raise CommandError(f"run {run.pk} {run.state}: {explained(run)}")
