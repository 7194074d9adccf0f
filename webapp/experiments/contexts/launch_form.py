"""Form that launches an experiment: texts, base, arms, seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from django.urls import reverse

from engine.config.recipes import RECIPES
from engine.errors import ConfigError, Problem
from webapp.core.contexts.frame import Crumb
from webapp.core.contexts.numbers import MOST_ID, whole
from webapp.experiments import selectors as reads
from webapp.experiments.contexts.power import Power
from webapp.experiments.designs import MAX_ARMS, Design, make_design, seeds_text, setting_line, stored_design
from webapp.experiments.models import Experiment
from webapp.runs.selectors.recipes import saved_recipes

BLANK_ARMS = (("baseline", ""), ("", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFormContext:
    """Context of the form."""

    section: str
    crumbs: tuple[Crumb, ...]
    experiment: Experiment | None
    """None for a new experiment."""
    values: Mapping[str, str]
    arms: tuple[tuple[str, str], ...]
    """Name and settings of each arm, a setting per line."""
    can_add: bool
    recipes: tuple[str, ...]
    refused: tuple[Problem, ...]
    checked: str
    """Result of a check without problems, in words."""
    power: Power | None
    spreads: tuple[tuple[int, str], ...]
    """Experiments with arms, whose finished runs show the spread over seeds."""


def build_launch_form(
    experiment: Experiment | None,
    posted: Mapping[str, str] | None = None,
    *,
    refused: tuple[Problem, ...] = (),
    checked: str = "",
    power: Power | None = None,
) -> LaunchFormContext:
    """Build the form with posted values, else with those of the last launch."""
    design = stored_design(experiment) if experiment is not None else None
    if posted is not None:
        values, arms = posted, tuple(posted_arms(posted))
    elif experiment is not None and design is not None:
        values, arms = _values(design) | {"spread_of": str(experiment.pk)}, tuple(_arms(design))
    else:
        values, arms = {"seeds": "3"}, BLANK_ARMS
    if posted is not None and posted.get("then") == "add":
        arms = (*arms, ("", ""))
    first = Crumb("Experiments", reverse("experiment-list"))
    named = (
        (Crumb(experiment.name, reverse("experiment-detail", args=[experiment.pk])), Crumb("launch"))
        if experiment is not None
        else (Crumb("new"),)
    )
    return LaunchFormContext(
        section="experiments",
        crumbs=(first, *named),
        experiment=experiment,
        values=values,
        arms=arms[:MAX_ARMS],
        can_add=len(arms) < MAX_ARMS,
        recipes=(*RECIPES, *(recipe.name for recipe in saved_recipes())),
        refused=refused,
        checked=checked,
        power=power,
        spreads=tuple(reads.experiments_with_arms()),
    )


def posted_arms(posted: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield name and settings of each arm of a form, without blank ones."""
    for i in range(MAX_ARMS):
        name, settings = (posted.get(f"arm-{i}-{field}", "").strip() for field in ("name", "settings"))
        if name or settings:
            yield name, settings


def posted_design(posted: Mapping[str, str]) -> Design:
    """Return the design of a form. Raises ConfigError."""
    base = posted.get("base_run", "").strip()
    number = whole(base, most=MOST_ID)
    if base and number is None:
        raise ConfigError(Problem(f"expected the number of a run, not '{base[:100]}'", "base_run"))
    arms = list(posted_arms(posted))
    names = [name for name, _ in arms]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            *(Problem("two arms have this name: give each its own", f"arms.{name}") for name in repeated)
        )
    return make_design(
        recipe=posted.get("recipe", ""),
        base_run=number,
        arms=[(name, settings.splitlines()) for name, settings in arms],
        seeds=posted.get("seeds", ""),
    )


def _values(design: Design) -> dict[str, str]:
    return {
        "recipe": design.recipe,
        "base_run": str(design.base_run) if design.base_run is not None else "",
        "seeds": seeds_text(design.seeds),
    }


def _arms(design: Design) -> Iterator[tuple[str, str]]:
    for arm in design.arms:
        yield arm.name, "\n".join(setting_line(key, value) for key, value in arm.settings.items())
