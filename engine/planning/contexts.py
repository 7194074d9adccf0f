"""Check of a run's conversation lengths against its model's ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError, Problem
from engine.files import numbered_folders
from engine.models.gguf.files import gguf_file
from engine.models.gguf.header import read_header
from engine.models.published.shapes import SHAPES, max_context
from engine.planning.shapes import tiny_settings
from engine.reading import read_json

_MODELS = (("policy", "checkpoint"), ("sft", "start"))
"""Settings that name the model of a run, by kind."""
_CONTEXTS = (("agent", "max_context"), ("evaluation", "max_context"), ("verifier", "max_context"))


def long_contexts(config: Mapping[str, Any], *, home: Path) -> list[Problem]:
    """Return the settings of a run that exceed its model's maximum conversation length.

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
    """Return the maximum length of a model's sequences, tokens; None where no local file defines it.

    Args:
        ref: see ``engine.models.references``.
        home: the data folder, for ``run:<id>``.
    """
    settings = tiny_settings(ref) or SHAPES.get(ref)
    try:
        if settings is None and (file := gguf_file(_folder(ref, home))) is not None:
            return read_header(file).count("context_length")
        settings = settings or read_json(_folder(ref, home) / "config.json")
        return max_context(settings) if isinstance(settings, dict) else None
    except (CheckpointError, OSError, ValueError, OverflowError):
        return None


def _folder(ref: str, home: Path) -> Path:
    """Return the folder of a model. Raises FileNotFoundError for a run without checkpoints."""
    scheme, _, name = ref.partition(":")
    if scheme != "run":
        return Path(name if scheme == "fresh" else ref)
    checkpoints = numbered_folders(home / "runs" / Path(name).name / "checkpoints")
    if not checkpoints:
        raise FileNotFoundError(f"{ref} has no checkpoint")
    return checkpoints[-1]
