"""Drafts: a recipe, or a run to clone, with a person's settings; page, API and commands save them as runs.

The value of a setting comes from the last of these sources that has one:

    defaults ─▶ recipe or cloned run ─▶ preset, type of policy ─▶ dataset and model ─▶ person
                      original                                          base

``Draft.origin`` returns the source.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeVar, get_args

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from engine.algorithms.lint import lint_data
from engine.config.base import Section
from engine.config.contradictions import LintFinding
from engine.config.presets import PRESETS
from engine.config.recipes import RECIPES
from engine.config.run import (
    POLICY_TYPE_KEY,
    PRESET_KEY,
    AnyRun,
    parse_run_config,
    with_overrides,
)
from engine.errors import ConfigError, Problem
from engine.reading import LimitError, check_nesting
from engine.types import RunKind, RunState
from webapp.core.services.cleaning import without_nul
from webapp.datasets.selectors.defaults import dataset_settings, is_local
from webapp.endpoints.services import places
from webapp.runs.models.runs import Run
from webapp.runs.services.recipes import resolve_recipe, setting_values

M = TypeVar("M", bound=BaseModel)
UNSET = "–"
"""Placeholder for settings that have neither value nor default; the form shows them empty."""
_REQUIRED: Mapping[str, Mapping[str, str]] = {
    "endpoint": {"endpoint": UNSET, "model": UNSET},
    "replay": {"source": UNSET},
}
"""Settings without default, by type of policy."""
_REQUIRED_NAMES = tuple(name for settings in _REQUIRED.values() for name in settings)
POLICY_SECTIONS = ("policy", "curation.writer", "curation.judge")
"""Sections whose settings differ by the type of a policy."""
SELECTING = (PRESET_KEY, *(f"{section}.type" for section in POLICY_SECTIONS))
"""Settings that select the values of others."""


class Origin(StrEnum):
    """Source of a setting's value; ``NONE`` for the default."""

    HAND = "hand"
    FOLLOWS = "follows"
    PRESET = "preset"
    POLICY = "policy"
    BASE = "base"
    """The recipe, or the run that is cloned."""
    NONE = ""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A configuration before it is a run; values are JSON, settings have dotted names."""

    original: Mapping[str, Any]
    """Configuration of the recipe or of the cloned run."""
    model: AnyRun
    """``original`` under the chosen preset and type of policy; its sections may contradict each other."""
    follows: Mapping[str, Any]
    """Settings that follow from dataset and model."""
    overrides: Mapping[str, Any]
    """Settings of a person that differ from ``base``; preset and type of policy from ``original``."""

    @cached_property
    def selected(self) -> dict[str, Any]:
        """Return ``model`` as JSON."""
        return self.model.model_dump(mode="json")

    @cached_property
    def base(self) -> dict[str, Any]:
        """Return ``selected`` with ``follows``: the values before a person's changes."""
        return _with(self.selected, self.follows)

    @property
    def data(self) -> dict[str, Any]:
        """Return the whole configuration, which may be invalid."""
        return with_overrides(self.original, {**self.follows, **self.overrides})

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the settings that have no default and no value yet."""
        names = (f"{section}.{name}" for section in POLICY_SECTIONS for name in _REQUIRED_NAMES)
        unset = (name for name in names if _value_of(self.selected, name) == UNSET)
        return tuple(setting for setting in unset if setting not in self.overrides)

    def resolved(self) -> AnyRun:
        """Return the whole configuration. Raises ConfigError for an unknown or invalid setting."""
        return parse_run_config(self.data)

    def findings(self) -> list[LintFinding]:
        """Return the problems: contradictions, settings without effect, values that are not allowed."""
        try:
            places.checked(self.data)
            return lint_data(self.data)
        except ConfigError as error:
            return [
                LintFinding(severity="error", setting=problem.setting, message=problem.message)
                for problem in error.problems
            ]

    def text(self, setting: str) -> str:
        """Return a setting's value as text for an input; empty where there is none."""
        return as_text(self.overrides[setting]) if setting in self.overrides else self.base_text(setting)

    def base_text(self, setting: str) -> str:
        """Return a setting's value before a person's change, as text for an input."""
        return _text_of(self.original if setting in SELECTING else self.base, setting)

    def origin(self, setting: str) -> Origin:
        """Return the source of a setting's value."""
        return Origin.HAND if setting in self.overrides else self.base_origin(setting)

    def base_origin(self, setting: str) -> Origin:
        """Return the source of a setting's value before a person's change."""
        base, original = self.base_text(setting), self.originals.get(setting)
        if setting in self.follows and base != original:
            return Origin.FOLLOWS
        if original is not None and base != original:
            return Origin.PRESET if setting.startswith("algorithm.") else Origin.POLICY
        return Origin.BASE if base != self.defaults.get(setting, base) else Origin.NONE

    @cached_property
    def originals(self) -> Mapping[str, str]:
        """Values of the recipe or of the cloned run, as texts."""
        return dict(setting_texts(parse_run_config(self.original)))

    @cached_property
    def defaults(self) -> Mapping[str, str]:
        """Defaults of the configuration's classes, as texts; settings without default are left out."""
        return dict(_defaults(self.model))


def draft(
    *,
    recipe: str = "",
    parent: Run | None = None,
    overrides: Mapping[str, Any] | None = None,
    follows: Mapping[str, Any] | None = None,
) -> Draft:
    """Return the draft of a recipe, or of a run to clone; clones and saved recipes have nothing that follows.

    Args:
        recipe: its name; not used for a clone.
        parent: the run to clone.
        overrides: a person's settings.
        follows: settings that followed when a form was rendered; None: what follows now.

    Raises:
        ConfigError: there is no such recipe, the run's configuration is of another version, the database
            cannot store an override, or one names another recipe.
    """
    given = dict(overrides or {})
    check_storable(given)
    if "recipe" in given:
        message = "cannot be overridden: create the run from that recipe instead"
        raise ConfigError(Problem(message, "recipe"))
    config = parse_run_config(parent.config) if parent is not None else resolve_recipe(recipe)
    original = config.model_dump(mode="json")
    model = _select(config, given)
    if follows is None:
        is_shipped = parent is None and recipe in RECIPES
        follows = _follows(original, model.model_dump(mode="json"), given) if is_shipped else {}
    made = Draft(original=original, model=model, follows=follows, overrides={})
    # Unknown settings are kept, so that ``resolved`` refuses them; naming a preset replaces its section.
    own = {
        key: value
        for key, value in given.items()
        if key == PRESET_KEY or as_text(value) != made.base_text(key) or not _has(made.base, key)
    }
    return replace(made, overrides=own)


def check_storable(given: Any) -> None:
    """Raise ConfigError for JSON that the database cannot store, or that is nested too deep."""
    try:
        check_nesting(given)
        json.dumps(given, ensure_ascii=False).encode()
    except (LimitError, ValueError) as error:
        raise ConfigError(f"the overrides cannot be stored: {error}") from None
    if without_nul(given) != given:
        raise ConfigError("the overrides cannot be stored: they contain the character NUL")


def as_text(value: object) -> str:
    """Return a setting's value as text for its input."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "\n".join(as_text(item) for item in value)
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value)


def setting_texts(model: BaseModel) -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the text of every setting of a configuration."""
    return ((name, as_text(value)) for name, value in setting_values(model))


def policy_types(config: AnyRun) -> dict[str, tuple[str, ...]]:
    """Return the settings that select the type of a policy, with the types that each may have."""
    return {
        f"{section}.type": tuple(classes)
        for section in POLICY_SECTIONS
        if (classes := _policy_classes(config, section))
    }


def _policy_classes(config: AnyRun, section: str) -> dict[str, type[BaseModel]]:
    """Return type → class of a policy's section; empty for kinds of run without it."""
    *parents, name = section.split(".")
    model: object = config
    for parent in parents:
        model = getattr(model, parent, None)
    field = type(model).model_fields.get(name) if isinstance(model, BaseModel) else None
    if field is None:
        return {}
    members = get_args(field.annotation) or (field.annotation,)
    return {get_args(member.model_fields["type"].annotation)[0]: member for member in members}


def _select(config: AnyRun, given: Mapping[str, Any]) -> AnyRun:
    """Return a configuration with the sections of the chosen preset and type of policy.

    Sections are not compared: a person's other settings may be what makes them agree.
    """
    sections: dict[str, BaseModel] = {}
    preset = given.get(PRESET_KEY)
    algorithm = getattr(config, "algorithm", None)
    if algorithm is not None and isinstance(preset, str) and preset in PRESETS:
        sections["algorithm"] = type(algorithm)(preset=preset)
    current = dict(setting_texts(config))
    for section in POLICY_SECTIONS:
        chosen, classes = given.get(f"{section}.type"), _policy_classes(config, section)
        if isinstance(chosen, str) and chosen in classes and chosen != current[f"{section}.type"]:
            sections[section] = classes[chosen](type=chosen, **_REQUIRED.get(chosen, {}))
    for name, section_model in sections.items():
        config = _replaced(config, name.split("."), section_model)
    return config


def _replaced(model: M, path: Sequence[str], section: BaseModel) -> M:
    """Return a copy of a configuration with another section at a path."""
    name, *rest = path
    return model.model_copy(
        update={name: _replaced(getattr(model, name), rest, section) if rest else section}
    )


def _follows(
    original: Mapping[str, Any], selected: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings that follow from the dataset and, in a collection, from its model."""

    try:
        merged = with_overrides(selected, {key: given[key] for key in given if key not in SELECTING})
    except ConfigError:  # an override leads through something that is no section; ``resolved`` refuses it
        return {}

    def text(setting: str) -> str:
        return _text_of(merged, setting)

    dataset = text("dataset.name")
    settings = dataset_settings(original, dataset)
    if original["kind"] != RunKind.ROLLOUT:
        return settings
    policy = text(POLICY_TYPE_KEY)
    model = text("policy.model") or text("policy.checkpoint") or policy
    settings["name"] = f"{model} on {dataset}"[:200]
    if policy == "endpoint":
        settings["agent.tool_format"] = "native"
    if is_local(dataset):
        settings["sandbox.backend"] = "local"
    if text("collection.skip") != "none":
        settings["collection.skip_runs"] = _earlier_runs(original, given)
    return settings


def _earlier_runs(original: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Return the collections of a draft's policy on its dataset, oldest first; none while it is invalid."""
    # ``collection.skip`` is invalid until the runs to skip are known.
    overrides = {key: value for key, value in given.items() if not key.startswith("collection.")}
    try:
        config = parse_run_config(with_overrides(original, overrides)).model_dump(mode="json")
    except ConfigError:
        return []
    runs = Run.objects.filter(
        kind=RunKind.ROLLOUT.value,
        config__dataset__name=config["dataset"]["name"],
        config__policy=config["policy"],
    ).exclude(state__in=[RunState.DRAFT.value, RunState.QUEUED.value])
    return [str(pk) for pk in runs.exclude(last_seq=0).order_by("pk").values_list("pk", flat=True)]


def _with(config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy with other values of settings that it has."""
    result = dict(config)
    for setting, value in values.items():
        if not _has(result, setting):
            continue
        *sections, name = setting.split(".")
        node = result
        for section in sections:
            node[section] = dict(node[section])
            node = node[section]
        node[name] = value
    return result


def _has(config: Mapping[str, Any], setting: str) -> bool:
    *sections, name = setting.split(".")
    section: Any = config
    for part in sections:
        section = section.get(part) if isinstance(section, dict) else None
    return isinstance(section, dict) and name in section


def _text_of(config: Mapping[str, Any], setting: str) -> str:
    """Return a setting of a configuration as text for its input; empty where there is none."""
    value = _value_of(config, setting)
    return "" if value == UNSET else as_text(value)


def _value_of(config: Mapping[str, Any], setting: str) -> Any:
    """Return a setting of a configuration; None where there is none."""
    value: Any = config
    for part in setting.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _defaults(model: BaseModel, default: object = None, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the default of every setting of a model.

    Args:
        model: configuration with these settings.
        default: the section's default where the section that contains it sets one.
        prefix: of the names.
    """
    known = default.model_dump(mode="json") if isinstance(default, type(model)) else {}
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        own = getattr(default, name) if known else info.get_default(call_default_factory=True)
        if isinstance(value, Section):
            yield from _defaults(value, own, f"{prefix}{name}.")
        elif known or not info.is_required():
            yield f"{prefix}{name}", as_text(known[name] if known else to_jsonable_python(own))
