"""The form that all formats are converted to and from: OpenAI's messages.

Roles are ``system``, ``user``, ``assistant`` and ``tool``. Contents are texts; calls are in ``tool_calls``,
one a message, with arguments as an object; each ``tool`` message answers the call before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
ROLES = ("system", "user", "assistant", "tool")


class ConversationError(ValueError):
    """A conversation is malformed, or a format cannot express it; the message names the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation, with what is known of its outcome."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    """Functions declared to the model, in OpenAI's form."""
    name: str = ""
    """Name of the task; empty where it is unknown."""
    resolved: bool | None = None
    """Whether the task was solved; None where it is unknown."""


def checked(
    messages: Any, tools: Any = None, *, name: str = "", resolved: bool | None = None
) -> Conversation:
    """Return foreign messages in our form.

    Contents in parts become one text, arguments in JSON become objects, and messages with several calls
    become as many messages, each followed by its answer; the last calls may have none.

    Raises:
        ConversationError: a message is malformed, or answers no call.
    """
    if not isinstance(messages, list) or not messages:
        raise ConversationError("messages: expected a list with at least one message")
    if not isinstance(tools := tools or [], list) or not all(isinstance(tool, dict) for tool in tools):
        raise ConversationError("tools: expected a list of objects")
    plain = [_plain(message, f"messages.{index}") for index, message in enumerate(messages)]
    if not any(message["role"] == "assistant" for message in plain):
        raise ConversationError("messages: none is the assistant's")
    return Conversation(messages=tuple(_split(plain)), tools=tuple(tools), name=name, resolved=resolved)


def _plain(message: Any, place: str) -> Message:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise ConversationError(f"{place}.role: expected one of {', '.join(ROLES)}")
    plain: Message = {"role": message["role"], "content": _text(message.get("content"), f"{place}.content")}
    if thinking := message.get("reasoning_content"):
        plain["reasoning_content"] = _text(thinking, f"{place}.reasoning_content")
    if calls := message.get("tool_calls"):
        if message["role"] != "assistant" or not isinstance(calls, list):
            raise ConversationError(f"{place}.tool_calls: expected a list in a message of the assistant")
        plain["tool_calls"] = [_call(call, f"{place}.tool_calls.{i}") for i, call in enumerate(calls)]
    if message["role"] == "tool":
        plain["tool_call_id"] = str(message.get("tool_call_id") or "")
        if name := message.get("name"):
            plain["name"] = str(name)
    return plain


def _text(content: Any, place: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        raise ConversationError(f"{place}: expected text, or parts of text")
    return "\n".join(part["text"] for part in parts)


def _call(call: Any, place: str) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ConversationError(f"{place}.function: expected an object with a name")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise ConversationError(f"{place}.function.arguments: not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise ConversationError(f"{place}.function.arguments: expected an object")
    return {
        "id": str(call.get("id") or ""),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _split(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield messages with at most one call, each followed by its answer; calls get unique identifiers."""
    count, position = 0, 0
    while position < len(messages):
        message = messages[position]
        position += 1
        if message["role"] == "tool":
            raise ConversationError(f"messages.{position - 1}: answers no call")
        calls = message.get("tool_calls", [])
        if not calls:
            yield message
            continue
        answers = []
        while position < len(messages) and messages[position]["role"] == "tool":
            answers.append(messages[position])
            position += 1
        matched = _matched(calls, answers, ends=position == len(messages), place=f"messages.{position - 1}")
        for index, (call, answer) in enumerate(matched):
            own = {**call, "id": f"call_{count}"}
            yield (
                {**message, "tool_calls": [own]}
                if index == 0
                else {"role": "assistant", "content": "", "tool_calls": [own]}
            )
            if answer is not None:
                yield {
                    "role": "tool",
                    "content": answer["content"],
                    "tool_call_id": own["id"],
                    "name": call["function"]["name"],
                }
            count += 1


def _matched(
    calls: Sequence[Message], answers: Sequence[Message], *, ends: bool, place: str
) -> list[tuple[Message, Message | None]]:
    """Return each call with its answer: by identifier where all have one, else in order."""
    by_id = {answer["tool_call_id"]: answer for answer in answers}
    ids = [call["id"] for call in calls]
    if (
        len(by_id) == len(answers)
        and "" not in by_id
        and len(set(ids)) == len(ids)
        and set(by_id) <= set(ids)
    ):
        found = [by_id.get(name) for name in ids]
    else:
        found = [*answers, *[None] * (len(calls) - len(answers))]
    missing = [index for index, answer in enumerate(found) if answer is None]
    if len(answers) > len(calls) or (missing and not (ends and missing == [len(calls) - 1])):
        raise ConversationError(
            f"{place}: {len(calls)} calls have {len(answers)} answers; expected one each, maybe not the last"
        )
    return list(zip(calls, found, strict=True))
