"""Factory of a model's chat format.

To add a family's renderer: its name in ``engine.models.families``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.errors import CheckpointError
from engine.models.builtin.tokenizer import BpeTokenizer
from engine.models.chat.base import Chat
from engine.models.chat.chatml import ChatML
from engine.models.families import Family
from engine.reading import read_json


def open_chat(tokenizer: Any, family: Family, folder: Path | None) -> Chat:
    """Return the chat format of an opened model.

    Args:
        tokenizer: a built-in policy's, or ``transformers``' own.
        family: row of the model's architecture.
        folder: the model's original files; None without.

    Raises:
        CheckpointError: the tokenizer does not support conversations; the message has the reason.
    """
    if isinstance(tokenizer, BpeTokenizer):
        return ChatML(tokenizer)
    from engine.models.chat.rendered import RenderedChat  # its library takes a second to import

    return RenderedChat(tokenizer, family.renderer, extra_stop_ids=_generation_ends(folder))


def _generation_ends(folder: Path | None) -> frozenset[int]:
    """Return the end-of-sequence ids of a folder's generation settings."""
    path = folder / "generation_config.json" if folder is not None else None
    if path is None or not path.exists():
        return frozenset()
    try:
        ends = read_json(path).get("eos_token_id")
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    ids = ends if isinstance(ends, list) else [] if ends is None else [ends]
    if not all(type(i) is int for i in ids):
        raise CheckpointError(f"{path} has eos_token_id {ends!r}; expected a token's id, or a list of them")
    return frozenset(ids)
