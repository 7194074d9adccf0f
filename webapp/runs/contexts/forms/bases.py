"""Configurations that the new-run form compares its settings with.

They are a recipe's or a run's, with the chosen preset and type of policy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from engine.config.presets import PRESETS
from engine.config.recipes import RECIPES
from engine.config.run import POLICY_TYPE_KEY, PRESET_KEY, parse_run_config, policy_type, with_overrides
from engine.errors import ConfigError

UNSET = "–"
"""Value in a base of settings without default; the form shows them empty."""
_REQUIRED: Mapping[str, Mapping[str, str]] = {
    "endpoint": {"endpoint": UNSET, "model": UNSET},
    "replay": {"source": UNSET},
}
"""Settings without default, by type of policy."""


def as_text(value: object) -> str:
    """Return a setting's value as its input holds it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "\n".join(as_text(item) for item in value)
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value)


def recipe_base(recipe: str) -> dict[str, Any]:
    """Return a recipe's whole configuration. Raises ConfigError for an unknown one."""
    if recipe not in RECIPES:
        raise ConfigError(f"unknown recipe '{recipe}'")
    return {**RECIPES[recipe]().model_dump(mode="json"), "recipe": recipe}


def rebase(base: Mapping[str, Any], posted: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the configuration a form is compared with, and what was posted, under another preset or policy.

    A form holds every setting of the preset and of the type of policy it was rendered with
    (``rendered_preset``, ``rendered_policy``): settings of the preset that were left as they were make way
    for the chosen preset's, and all settings of a policy make way for those of another type.
    """
    shown, kept = _rebase_preset(base, posted)
    return _rebase_policy(shown, kept)


def _rebase_policy(base: dict[str, Any], posted: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    current = policy_type(base)
    chosen = posted.get(POLICY_TYPE_KEY, current)
    if chosen not in policy_types(base):
        return base, posted
    if chosen != posted.get("rendered_policy", chosen):
        posted = {
            key: text
            for key, text in posted.items()
            if key == POLICY_TYPE_KEY or not key.startswith("policy.")
        }
    if chosen != current:
        settings = {"type": chosen, **_REQUIRED.get(chosen, {})}
        base = parse_run_config({**base, "policy": settings}).model_dump(mode="json")
    return base, posted


def policy_types(base: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the types of policy that a configuration may have; empty for kinds of run without a policy."""
    field = type(parse_run_config(base)).model_fields.get("policy")
    if field is None:
        return ()
    members = get_args(field.annotation) or (field.annotation,)
    return tuple(get_args(member.model_fields["type"].annotation)[0] for member in members)


def _rebase_preset(
    base: Mapping[str, Any], posted: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    preset = base.get("algorithm", {}).get("preset")
    chosen = posted.get(PRESET_KEY, preset)
    rendered = posted.get("rendered_preset", preset)
    if preset is None or not {chosen, rendered} <= set(PRESETS):
        return dict(base), dict(posted)
    shown, before = _under(base, chosen), _under(base, rendered)
    kept = {
        key: text
        for key, text in posted.items()
        if chosen == rendered or not _is_left(key, text, before["algorithm"])
    }
    return shown, kept


def _under(base: Mapping[str, Any], preset: str | None) -> dict[str, Any]:
    """Return ``base`` with the objective of another preset, resolved."""
    if preset == base["algorithm"]["preset"]:
        return dict(base)
    return parse_run_config(with_overrides(base, {PRESET_KEY: preset})).model_dump(mode="json")


def _is_left(key: str, text: str, algorithm: Mapping[str, Any]) -> bool:
    section, _, name = key.partition(".")
    return section == "algorithm" and key != PRESET_KEY and text.strip() == as_text(algorithm.get(name))
