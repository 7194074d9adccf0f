"""The command ``plan``: what a run needs and costs, before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from django.db import OperationalError

from engine.config.base import parse_settings
from engine.config.recipes import RECIPES, resolve
from engine.planning import RunPlan, plan_configured, render, to_json
from webapp.core.cli import AsJson, Settings, print_json, warn
from webapp.runs.selectors import plans
from webapp.runs.services.drafts import draft


def plan(
    recipe: Annotated[str, typer.Argument(help=", ".join(sorted(RECIPES)), show_default=False)],
    settings: Settings = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="COUNTxNAME", help="E.g. 8xH100; default: the H100 it needs.")
    ] = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Assumption, e.g. mfu=0.4; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print memory per GPU, time, GPU-hours and sandboxes of a run, before anything starts.

    The exit status is 1 if the run does not fit.
    """
    computed = _plan(
        recipe, parse_settings(settings or []), gpus=gpus, assumptions=parse_settings(assume or [])
    )
    if as_json:
        print_json(to_json(computed), indent=2)
    else:
        print(render(computed))
    if computed.problems:
        raise typer.Exit(1)


def _plan(
    recipe: str, overrides: Mapping[str, Any], *, gpus: str | None, assumptions: Mapping[str, Any]
) -> RunPlan:
    """Return the plan, without this installation's datasets and runs while the database is down."""
    try:
        config = draft(recipe=recipe, overrides=overrides).resolved()
        return plans.plan(config, gpus=gpus, assumptions=assumptions)
    except OperationalError:
        warn("The database is not reachable: nothing follows from datasets and runs.")
        return plan_configured(resolve(recipe, overrides), gpus=gpus, assumptions=assumptions)
