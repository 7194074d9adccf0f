"""Recipes by name: those that are shipped, and those that people saved from runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from pydantic import BaseModel

from engine.config.base import Section
from engine.config.recipes import RECIPES, resolve
from engine.config.run import PRESET_KEY, AnyRun, parse_run_config, with_overrides
from engine.errors import ConfigError, Problem
from webapp.core.services import audit
from webapp.core.services.cleaning import without_nul
from webapp.runs.models.recipes import SavedRecipe
from webapp.runs.models.runs import Run

MAX_DESCRIPTION = 2000
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_OWN = ("recipe", "name")
"""Settings that follow from the recipe's name."""


def resolve_recipe(name: str) -> AnyRun:
    """Return the complete configuration of a recipe.

    Raises:
        ConfigError: there is no such recipe, or a saved one does not fit the current settings.
    """
    saved = None if name in RECIPES else SavedRecipe.objects.filter(name=name).first()
    return resolve(name) if saved is None else _resolved(name, saved.base, saved.overrides)


def _resolved(name: str, base: str, settings: dict[str, Any]) -> AnyRun:
    data = resolve(base).model_dump(mode="json") | {"recipe": name, "name": name}
    return parse_run_config(with_overrides(data, settings))


@transaction.atomic
def save_recipe(*, run: Run, name: str, description: str = "", actor: User | None = None) -> SavedRecipe:
    """Save a run's configuration as a recipe: its settings that differ from the shipped recipe behind it.

    Raises:
        ConfigError: the name is not allowed or taken, the description is too long, or the run has no recipe.
    """
    name, description = without_nul(name).strip(), without_nul(description).strip()
    if not _NAME.fullmatch(name):
        message = "lower-case letters, digits, '.', '_' and '-' are allowed, at most 100, not"
        raise ConfigError(Problem(f"{message} '{name[:100]}'", "name"))
    if len(description) > MAX_DESCRIPTION:
        number = len(description)
        raise ConfigError(
            Problem(f"at most {MAX_DESCRIPTION:,} characters are allowed, not {number:,}", "description")
        )
    source = SavedRecipe.objects.filter(name=run.recipe).first()
    base = source.base if source is not None and run.recipe not in RECIPES else run.recipe
    if base not in RECIPES:
        raise ConfigError(f"run {run.pk} was not created from a recipe: no settings can differ from one")
    config = parse_run_config(run.config)
    settings = _differences(resolve(base), config)
    rebuilt = _resolved(name, base, settings).model_dump(mode="json")
    if _without_own(rebuilt) != _without_own(config.model_dump(mode="json")):
        raise ConfigError(f"the configuration of run {run.pk} cannot be expressed as settings over {base}")
    try:
        with transaction.atomic():
            if name in RECIPES:
                raise IntegrityError
            recipe = SavedRecipe.objects.create(
                name=name, description=description, kind=config.kind, base=base, overrides=settings,
                run_id=run.pk, created_by=actor,
            )  # fmt: skip
    except IntegrityError:
        raise ConfigError(Problem(f"there is a recipe '{name}' already", "name")) from None
    changes = {"base": base, "settings": settings}
    audit.record(actor=actor, action="recipe.save", run_id=run.pk, target=f"recipe {name}", changes=changes)
    return recipe


@transaction.atomic
def remove_recipe(*, recipe: SavedRecipe, actor: User | None = None) -> None:
    """Remove a saved recipe; runs that were created from it keep their configuration."""
    audit.record(actor=actor, action="recipe.remove", target=f"recipe {recipe.name}")
    recipe.delete()


def setting_values(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the JSON value of every setting of a configuration."""
    dumped = model.model_dump(mode="json")
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, Section):
            yield from setting_values(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", dumped[name]


def _differences(base: AnyRun, config: AnyRun) -> dict[str, Any]:
    """Return the settings of a configuration that differ from a base, as ``with_overrides`` reads them."""
    before, after = dict(setting_values(base)), dict(setting_values(config))
    different = {key for key in after if key not in before or before[key] != after[key]}
    # Another type or preset resets its section: all settings of it are named then.
    reset = tuple(key.removesuffix("type") for key in different if key.endswith(".type"))
    reset += ("algorithm.",) if PRESET_KEY in different else ()
    named = different | {key for key in after if reset and key.startswith(reset)}
    return {key: value for key, value in after.items() if key in named and key not in _OWN}


def _without_own(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in _OWN}
