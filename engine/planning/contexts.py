"""Longest conversation that a model was made for, from its ``config.json`` alone: no weights, no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from engine.errors import Problem
from engine.models.published.shapes import SHAPES
from engine.planning.shapes import tiny_settings
from engine.reading import read_json

_MODELS = (("policy", "checkpoint"), ("sft", "start"))
"""Settings that name the model of a run, by kind."""
_CONTEXTS = (("agent", "max_context"), ("evaluation", "max_context"), ("verifier", "max_context"))


def long_contexts(config: Mapping[str, Any], *, home: Path) -> list[Problem]:
    """Return the settings of a run that ask for longer conversations than its model was made for.

    Models that are not on this machine are not looked up; the engine refuses them when it opens them.

    Args:
        config: the run's resolved configuration.
        home: the data folder.
    """
    refs = [config.get(section, {}).get(field) for section, field in _MODELS]
    ref = next((ref for ref in refs if isinstance(ref, str)), None)
    limit = known_context(ref, home=home) if ref else None
    if limit is None:
        return []
    return [
        Problem(
            f"is {wanted}, but '{ref}' was made for at most {limit} tokens: lower it, or extend the model's "
            "context in its config.json (rope_parameters, e.g. of rope_type 'yarn')",
            f"{section}.{field}",
        )
        for section, field in _CONTEXTS
        if (wanted := config.get(section, {}).get(field) or 0) > limit
    ]


def known_context(ref: str, *, home: Path) -> int | None:
    """Return the maximum length of a model's sequences, tokens; None where no file here says so.

    Args:
        ref: see ``engine.models.references``.
        home: the data folder, for ``run:<id>``.
    """
    settings = tiny_settings(ref) or SHAPES.get(ref)
    try:
        settings = settings or read_json(_folder(ref, home) / "config.json")
        return _longest(settings) if isinstance(settings, dict) else None
    except (OSError, ValueError, OverflowError):
        return None


def _folder(ref: str, home: Path) -> Path:
    """Return the folder of a model. Raises FileNotFoundError for a run without checkpoints."""
    scheme, _, name = ref.partition(":")
    if scheme != "run":
        return Path(name if scheme == "fresh" else ref)
    checkpoints = sorted((home / "runs" / Path(name).name / "checkpoints").glob("[0-9]*"))
    if not checkpoints:
        raise FileNotFoundError(f"{ref} has no checkpoint")
    return checkpoints[-1]


def _longest(settings: Mapping[str, Any]) -> int | None:
    """Return the length that the position encodings are made for; where YaRN extends it, the extended one.

    Raises:
        OverflowError, ValueError: the extended one is no number of tokens.
    """
    lengths = [settings.get("max_position_embeddings")]
    for rope in _rotary_settings(settings):
        original, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
        if (
            "yarn" in (rope.get("rope_type"), rope.get("type"))
            and _is_number(original)
            and _is_number(factor)
        ):
            lengths.append(int(original * factor))
    known = [length for length in lengths if type(length) is int]
    return max(known, default=None)


def _is_number(value: object) -> TypeGuard[float]:
    return type(value) in (int, float)


def _rotary_settings(settings: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the position encodings: those of all layers, or of each kind of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = settings.get(name)
        if isinstance(rope, dict):
            yield from (one for one in (rope, *rope.values()) if isinstance(one, dict))
