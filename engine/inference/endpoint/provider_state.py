"""State that a provider expects back with its own message: signatures, encrypted reasoning, identifiers.

It has the form of a partial message, ``{"reasoning_details": [...], "tool_calls": [{"id": ...}]}``, is stored
on the step and sent back unchanged and uninterpreted. It is limited to the fields listed here,
``MAX_STATE_CHARS``, ``_MAX_DEPTH`` levels and values that JSON columns can store.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.tools.base import printable

MESSAGE_FIELDS: Mapping[str, str] = {
    "extra_content": "Gemini: thought signature of a text",
    "reasoning_details": "OpenRouter, Vercel: reasoning, also encrypted, with its signatures",
    "reasoning_opaque": "GitHub Copilot: encrypted reasoning",
    "encrypted_content": "xAI: encrypted reasoning",
    "thinking_blocks": "LiteLLM: thinking of Anthropic's models with its signature",
    "provider_specific_fields": "LiteLLM: thought signatures of Gemini",
}
"""Fields of a message that are kept → their providers."""
CALL_FIELDS: Mapping[str, str] = {
    "id": "all; LiteLLM writes thought signatures into it, Kimi's models expect their own",
    "extra_content": "Gemini: thought signature of a call, required by Gemini 3",
    "provider_specific_fields": "LiteLLM: thought signature of a call",
}
"""Fields of a tool call that are kept → their providers."""
MAX_STATE_CHARS = 256 << 10
"""Maximum size of one message's state: characters of texts and names, plus one for each value."""
_MAX_DEPTH = 16
_TEXTS = ("text", "summary", "data", "thinking")
"""Fields of a list's objects that streams send in pieces."""


class ProviderStateError(ValueError):
    """The provider state of an answer is too large, too deep or cannot be stored."""


def read_state(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the provider state of a message; None without any. Raises ProviderStateError."""
    state = _kept(message, MESSAGE_FIELDS)
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        kept = [_kept(call, CALL_FIELDS) if isinstance(call, dict) else {} for call in calls]
        if any(kept):
            state["tool_calls"] = kept
    measure_state(state)
    return state or None


def measure_state(state: object) -> int:
    """Return the size of a state: characters of its texts and names, and one for each value.

    Raises:
        ProviderStateError: it is too large or too deep, or has values that JSON columns cannot hold.
    """
    size, level = 0, [state]
    for _ in range(_MAX_DEPTH):
        below: list[object] = []
        for value in level:
            size += 1 + _length(value)
            if isinstance(value, dict):
                below += [*value, *value.values()]
            elif isinstance(value, list):
                below += value
            if size + len(below) > MAX_STATE_CHARS:
                raise ProviderStateError(
                    f"the answer's provider state is longer than {MAX_STATE_CHARS} characters"
                )
        if not below:
            return size
        level = below
    raise ProviderStateError(f"the answer's provider state has more than {_MAX_DEPTH} levels")


def _length(value: object) -> int:
    """Return the length of a text or number."""
    if isinstance(value, str):
        if len(value) <= MAX_STATE_CHARS and printable(value) != value:
            raise ProviderStateError("the answer's provider state has NUL or invalid characters")
        return len(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ProviderStateError("the answer's provider state has a number that is not finite")
    return value.bit_length() // 3 if isinstance(value, int) else 0


def add_piece(state: dict[str, Any], piece: Mapping[str, Any], names: Mapping[str, str]) -> int:
    """Add the state of one part of a stream; return its size. Raises ProviderStateError.

    Args:
        state: state so far.
        piece: part of a message, or of a call.
        names: fields that are kept.
    """
    kept = _kept(piece, names)
    for name, value in kept.items():
        before = state.get(name)
        if isinstance(before, list) and isinstance(value, list):
            for item in value:
                _add_item(before, item)
        elif isinstance(before, dict) and isinstance(value, dict):
            before.update(value)
        else:
            state[name] = value
    return measure_state(kept) if kept else 0


def _add_item(items: list[Any], item: object) -> None:
    """Append an object to a list, or merge it into the last object where it continues that."""
    last = items[-1] if items else None
    if not (isinstance(item, dict) and isinstance(last, dict)) or any(
        item.get(name) != last.get(name) for name in ("index", "type")
    ):
        items.append(item)
        return
    for name, value in item.items():
        if name in _TEXTS and isinstance(value, str) and isinstance(last.get(name), str):
            last[name] += value
        elif value is not None:
            last[name] = value


def merge_state(message: dict[str, Any], state: Mapping[str, Any]) -> None:
    """Add provider state to a message that is sent back, and to its calls."""
    message.update({name: value for name, value in state.items() if name != "tool_calls"})
    for call, kept in zip(message.get("tool_calls", ()), state.get("tool_calls", ()), strict=False):
        call.update({name: value for name, value in kept.items() if name != "id"})


def _kept(fields: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    kept = {name: fields[name] for name in names if fields.get(name) not in (None, "", [], {})}
    if not isinstance(kept.get("id", ""), str):
        del kept["id"]
    return kept
