"""A run's configuration as a table: settings with meaning, value and the recipe's; settings that differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from engine.algorithms.describe import describe as describe_objective
from engine.algorithms.lint import lint
from engine.config.contradictions import LintFinding
from engine.config.run import TrainRun, parse_run_config
from engine.errors import ConfigError
from webapp.core.contexts.words import show
from webapp.runs.services.recipes import resolve_recipe

UNCOMPARED = frozenset({"name"})
"""Settings that differ between any two runs."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting."""

    key: str
    """Dotted name, as in overrides."""
    name: str
    value: str
    base: str
    """The recipe's value."""
    changed: bool
    help: str


@dataclass(frozen=True, slots=True)
class SettingSection:
    """The settings of one section, in the order of the configuration."""

    name: str
    help: str
    settings: tuple[Setting, ...]

    @property
    def num_changed(self) -> int:
        """Return the number of settings that differ from the recipe."""
        return sum(setting.changed for setting in self.settings)


def describe(config: Mapping[str, Any], recipe: str) -> tuple[SettingSection, ...]:
    """Return the sections of a resolved configuration, compared with its recipe.

    A configuration that this version no longer accepts is still shown, without explanations.
    """
    base = _recipe(recipe)
    try:
        model: BaseModel | None = parse_run_config(config)
    except ConfigError:
        model = None
    general = {key: value for key, value in config.items() if not isinstance(value, Mapping)}
    sections = [_section("run", "", general, base, model, known=bool(base))]
    for key, value in config.items():
        if isinstance(value, Mapping):
            part = getattr(model, key, None)
            sections.append(_section(key, f"{key}.", value, base.get(key) or {}, part, known=bool(base)))
    return tuple(sections)


def _recipe(name: str) -> Mapping[str, Any]:
    """Return a recipe's configuration; empty if there is no such recipe, or no longer."""
    try:
        return resolve_recipe(name).model_dump(mode="json")
    except ConfigError:
        return {}


@dataclass(frozen=True, slots=True)
class Objective:
    """A training run's resolved objective for people."""

    sentences: tuple[tuple[str, str], ...] = ()
    """Pairs of ingredient and effect."""
    warnings: tuple[LintFinding, ...] = ()
    """Warnings about contradictory settings and settings without effect."""


def objective(config: Mapping[str, Any]) -> Objective:
    """Describe a run's objective in words and numbers; empty for a run without one."""
    try:
        run = parse_run_config(config)
    except ConfigError:
        return Objective()
    if not isinstance(run, TrainRun):
        return Objective()
    return Objective(
        sentences=tuple(describe_objective(run.algorithm, max_context=run.agent.max_context)),
        warnings=tuple(lint(run)),
    )


def _section(
    name: str,
    prefix: str,
    values: Mapping[str, Any],
    base: Mapping[str, Any],
    model: BaseModel | None,
    *,
    known: bool,
) -> SettingSection:
    fields = type(model).model_fields if model is not None else {}
    settings = []
    for key, value in values.items():
        changed = known and key != "recipe" and (key not in base or base[key] != value)
        help_text = fields[key].description or "" if key in fields else ""
        settings.append(Setting(f"{prefix}{key}", key, show(value), show(base.get(key)), changed, help_text))
    doc = (type(model).__doc__ or "").strip().split("\n")[0] if model is not None and prefix else ""
    return SettingSection(name, doc, tuple(settings))


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that differs between runs; None where a run has no such setting."""

    key: str
    values: tuple[str | None, ...]


def compare_settings(configs: Sequence[Mapping[str, Any]]) -> tuple[tuple[Difference, ...], int]:
    """Return the settings that differ between configurations, and the number of equal settings."""
    flat = [dict(_leaves(config)) for config in configs]
    keys = dict.fromkeys(key for settings in flat for key in settings if key not in UNCOMPARED)
    different = [
        key for key in keys if any(_value(settings, key) != _value(flat[0], key) for settings in flat)
    ]
    rows = tuple(
        Difference(key, tuple(show(settings[key])[:300] if key in settings else None for settings in flat))
        for key in different
    )
    return rows, len(keys) - len(rows)


def _value(settings: Mapping[str, Any], key: str) -> tuple[bool, Any]:
    return key in settings, settings.get(key)


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
