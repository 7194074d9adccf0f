"""Conversations in the format of endpoints.

Messages have the fields of the chat completions interface and those that the endpoint itself sent
(``provider_state``): strict endpoints refuse others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine.config.policies import EndpointPolicyConfig
from engine.inference.base import SamplingParams
from engine.inference.endpoint.provider_state import merge_state
from engine.models.chat.base import Message
from engine.tools.base import printable

_CHARACTERS_PER_TOKEN = 4


def configured_sampling(config: EndpointPolicyConfig) -> SamplingParams:
    """Return the sampling parameters of a configuration, with defaults for unset ones."""
    temperature = 1.0 if config.temperature is None else config.temperature
    return SamplingParams(temperature=temperature, top_p=config.top_p or 1.0)


def wire_messages(messages: Sequence[Message], *, thinking_field: str) -> list[dict[str, Any]]:
    """Return messages in the form of the chat completions interface.

    Args:
        messages: a conversation; arguments of tool calls may be objects.
        thinking_field: name of the field for the thinking of earlier turns; empty leaves it out.
    """
    return [_wire_message(message, thinking_field) for message in messages]


def _wire_message(message: Message, thinking_field: str) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": message["role"], "content": printable(message.get("content") or "")}
    if message["role"] == "tool":
        wire["tool_call_id"] = message["tool_call_id"]
    if calls := message.get("tool_calls"):
        wire["tool_calls"] = [_wire_call(call) for call in calls]
        wire["content"] = wire["content"] or None
    if thinking_field and (thinking := message.get("reasoning_content")):
        wire[thinking_field] = printable(thinking)
    if state := message.get("provider_state"):
        merge_state(wire, state)
    return wire


def _wire_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def estimate_tokens(messages: Sequence[Message], tools: Sequence[object] = ()) -> int:
    """Estimate the tokens of a conversation and its tool declarations from their characters."""
    characters = sum(
        len(message.get("content") or "") + len(str(message.get("tool_calls") or "")) for message in messages
    )
    characters += sum(len(str(tool)) for tool in tools)
    return characters // _CHARACTERS_PER_TOKEN + 1
