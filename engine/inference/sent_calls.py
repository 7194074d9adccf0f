"""Tool calls of a response, formatted for later requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from engine.inference.base import ChatResponse
from engine.tools.formats import checked_arguments
from engine.tools.parser import NativeCall
from engine.tools.schemas import CallError

_NO_NAME_CHARACTER = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME_CHARS = 64


def sent_calls(response: ChatResponse, *, identify: Callable[[int], str]) -> list[dict[str, Any]]:
    """Return a response's calls with names that endpoints accept and arguments that are a JSON object.

    Args:
        response: the endpoint's identifiers are kept where each call has a unique one.
        identify: returns an identifier for the call at a position.
    """
    state = (response.provider_state or {}).get("tool_calls", ())
    identifiers = [call.get("id") for call in state[: len(response.calls)]]
    is_complete = all(identifiers) and len(set(identifiers)) == len(response.calls)
    return [
        {
            "id": identifiers[position] if is_complete else identify(position),
            "type": "function",
            "function": {"name": _sendable_name(call.name), "arguments": _sendable_arguments(call)},
        }
        for position, call in enumerate(response.calls)
    ]


def _sendable_name(name: str) -> str:
    return _NO_NAME_CHARACTER.sub("_", name)[:_MAX_NAME_CHARS] or "unnamed"


def _sendable_arguments(call: NativeCall) -> str | dict[str, Any]:
    """Return the call's arguments as an object or JSON text; ``{}`` where they are invalid or empty."""
    try:
        if not checked_arguments(call.arguments):
            return "{}"
    except CallError:
        return "{}"
    return call.arguments if isinstance(call.arguments, str) else dict(call.arguments)
