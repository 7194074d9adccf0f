"""Small changes of messages before a format writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.models.chat.base import Message


def fold_system(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages with a leading system message put before the text of the one that follows."""
    if len(messages) < 2 or messages[0]["role"] != "system":
        return messages
    text = f"{messages[0]['content']}\n\n{messages[1]['content']}"
    return [{**messages[1], "content": text}, *messages[2:]]


def probe_call(name: str, where: str, identifier: str) -> dict[str, Any]:
    """Return a function call in OpenAI's form, for the template to write."""
    function = {"name": name, "arguments": {"where": where}}
    return {"id": identifier, "type": "function", "function": function}
