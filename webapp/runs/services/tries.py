"""Tries of a model: short collections, one in each tool format, before it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from engine.config.recipes import resolve
from engine.config.run import AnyRun
from engine.errors import ConfigError
from webapp.runs.models.runs import Run
from webapp.runs.selectors.tries import RECIPE
from webapp.runs.services import runs
from webapp.runs.services.recipes import setting_values

_CHECKPOINT = "policy.checkpoint"
_FORMATS = ("native", "xml")
_WORDS = "words"
"""Tool format for tools whose arguments are single words, as FrozenLake's."""
_COPIED = (
    "policy.", "environment.", "dataset.name", "dataset.split", "sandbox.", "launcher.", "agent.prompt",
    "agent.tools", "agent.thinking", "agent.thinking_history", "agent.min_response", "agent.max_context",
    "agent.max_response",
)  # fmt: skip
"""Beginnings of the settings in which a try equals the run that it prepares."""
_MAX_RESPONSE = 1024
"""Maximum length of a response in a try, tokens: it is to take minutes."""


@transaction.atomic
def start(*, overrides: Mapping[str, Any], actor: User | None = None) -> list[Run]:
    """Create and queue a run for each tool format that the tools can be called in.

    Args:
        overrides: settings by dotted name, on top of the recipe ``try-model``.
        actor: the person.

    Raises:
        ConfigError: as ``runs.create`` and ``runs.start``; no run is created then.
    """
    named = str(overrides.get(_CHECKPOINT, ""))
    if not named:
        raise ConfigError("name a model: a policy folder, a GGUF file, OWNER/NAME or run:ID")
    is_lake = overrides.get("environment.type") == "frozenlake"
    tried = [
        runs.create(
            recipe=RECIPE,
            overrides={**overrides, "agent.tool_format": name, "name": f"try of {named}, {name}"[:200]},
            actor=actor,
        )
        for name in (*_FORMATS, *([_WORDS] if is_lake else []))
    ]
    for run in tried:
        runs.start(run=run, actor=actor)
    return tried


def overrides_of(config: AnyRun) -> dict[str, Any]:
    """Return the overrides of a try that acts as a configuration does, on the same dataset."""
    known = dict(setting_values(resolve(RECIPE))) | {_CHECKPOINT: ""}
    copied = {
        name: value
        for name, value in setting_values(config)
        if name.startswith(_COPIED) and known.get(name) != value
    }
    if "agent.max_response" in copied:
        copied["agent.max_response"] = min(copied["agent.max_response"], _MAX_RESPONSE)
    return copied
