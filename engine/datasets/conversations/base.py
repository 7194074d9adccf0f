"""Common form of conversations, which every format is converted to and from: OpenAI's messages.

Roles are ``system``, ``user``, ``assistant`` and ``tool``. Contents are strings; calls are in ``tool_calls``,
one per message, with arguments as an object; each ``tool`` message answers the preceding call.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.reading import LimitError, parse_bounded
from engine.tools.base import printable
from engine.tools.rendering import render_native

Message = dict[str, Any]
ROLES = ("system", "user", "assistant", "tool")
_ROLES = {
    **{role: role for role in ROLES}, "developer": "system", "human": "user", "gpt": "assistant",
    "ai": "assistant", "model": "assistant", "function_call": "assistant", "function": "tool",
    "observation": "tool",
}  # fmt: skip
"""Roles in conversations of OpenAI, ShareGPT and SWE-agent → roles of the common form."""
REPLACED = "values that cannot be stored were replaced"
"""Problem of strings with NUL or a lone surrogate, and of NaN and infinite numbers."""


class ConversationError(ValueError):
    """A conversation is malformed, or a format cannot express it; the message names the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation and its outcome, where known."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    """Functions declared to the model, in OpenAI's form."""
    name: str = ""
    """Name of the task; empty if unknown."""
    resolved: bool | None = None
    """Whether the task was solved; None if unknown."""
    problems: Mapping[int, str] = field(default_factory=dict)
    """Index of a message → problems found when it was read."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The published row's fields except messages and tools."""


@dataclass(slots=True)
class _Read:
    """A message in the common form, its calls, and problems of the published message."""

    message: Message
    calls: list[Message]
    problems: list[str]


def checked(
    messages: Any,
    tools: Any = None,
    *,
    name: str = "",
    resolved: bool | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Conversation:
    """Convert foreign messages to the common form.

    Content parts are joined to one string, and arguments in JSON become objects. A message with several calls
    is split into one message per call, each followed by its answer. An unreadable call becomes text, an
    answer without a call becomes a user message; ``problems`` names both.

    Args:
        messages: a list, or its JSON text.
        tools: a list of objects or of their JSON texts, or the list's JSON text.
        name: the task's name.
        resolved: whether the task was solved.
        fields: the row's other fields.

    Raises:
        ConversationError: there is no message, or no assistant message.
    """
    listed = from_json(messages)
    if not isinstance(listed, list) or not listed:
        raise ConversationError("messages: expected a list with at least one message")
    read = [_plain(message, f"messages.{index}") for index, message in enumerate(listed)]
    if not any(item.message["role"] == "assistant" for item in read):
        raise ConversationError("messages: none is the assistant's")
    declared, unread = _tools(tools)
    read[0].problems += unread
    split = list(_split(read))
    return Conversation(
        messages=tuple(message for message, _ in split),
        tools=declared,
        name=printable(name),
        resolved=resolved,
        problems={index: "; ".join(texts) for index, (_, texts) in enumerate(split) if texts},
        fields=fields or {},
    )


def storable(value: Any) -> Any:
    """Make a JSON value storable: U+FFFD for NUL and lone surrogates, null for NaN and infinity."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [storable(item) for item in value]
    if isinstance(value, dict):
        return {storable(key): storable(item) for key, item in value.items()}
    return value


def storable_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's fields as storable values; ``replaced_in`` names the fields that were changed."""
    fields: dict[str, Any] = storable(dict(row))
    replaced = [name for name in row if fields.get(name) != row[name]]
    return {**fields, "replaced_in": storable(replaced)} if replaced else fields


def from_json(value: Any) -> Any:
    """Parse a value given as JSON text (None if malformed or beyond the limits); return others unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return parse_bounded(value)
    except ValueError:
        return None


def _tools(published: Any) -> tuple[tuple[Mapping[str, Any], ...], list[str]]:
    """Return the declared functions, and the problems of malformed ones."""
    if published in (None, "", []):
        return (), []
    listed = from_json(published)
    if not isinstance(listed, list):
        return (), ["tools: left out, expected a list of objects"]
    parsed = [from_json(tool) for tool in listed]
    kept = tuple(storable(tool) for tool in parsed if isinstance(tool, dict))
    return kept, [f"tools: {len(parsed) - len(kept)} left out, not objects"] * (len(kept) < len(parsed))


def _plain(published: Any, place: str) -> _Read:
    """Convert a published message to the common form."""
    source = published if isinstance(published, dict) else {"role": None, "content": published}
    problems: list[str] = []
    message = storable(source)
    if message != source:
        problems.append(f"{place}: {REPLACED}")
    role = _ROLES.get(str(message.get("role")), "")
    if not role:
        problems.append(f"{place}.role: {str(message.get('role'))[:80]!r}, read as the user's")
    content = message.get("content", message.get("text"))
    plain: Message = {"role": role or "user", "content": _text(content, f"{place}.content", problems)}
    if thinking := message.get("reasoning_content"):
        plain["reasoning_content"] = _text(thinking, f"{place}.reasoning_content", problems)
    if plain["role"] == "tool":
        plain["tool_call_id"] = str(message.get("tool_call_id") or "")
    if plain["role"] == "assistant":
        return _Read(plain, _calls(message, place, problems), problems)
    if message.get("tool_calls"):
        problems.append(f"{place}.tool_calls: left out, only the assistant calls")
    return _Read(plain, [], problems)


def _calls(message: Message, place: str, problems: list[str]) -> list[Message]:
    """Return the calls of a message; an unreadable call has only its text."""
    published = message.get("tool_calls") or message.get("function_call") or []
    calls: list[Message] = []
    for index, call in enumerate(published if isinstance(published, list) else [published]):
        try:
            calls.append(_call(call, f"{place}.tool_calls.{index}", problems))
        except ConversationError as error:
            problems.append(f"{place}.tool_calls.{index}: {error}")
            calls.append({"id": _identifier(call), "text": _call_text(call)})
    return calls


def _text(content: Any, place: str, problems: list[str]) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    return "\n".join(_part(part, place, problems) for part in parts)


def _part(part: Any, place: str, problems: list[str]) -> str:
    """Return the text of a content part; for an image or another medium, its type in brackets."""
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    if isinstance(part, dict) and isinstance(part.get("type"), str):
        problems.append(f"{place}: a part of type {part['type'][:80]!r} was left out")
        return f"[{part['type'][:80]}]"
    problems.append(f"{place}: expected text, or parts of text")
    return json.dumps(part, ensure_ascii=False)


def _call(call: Any, place: str, problems: list[str]) -> Message:
    """Convert a call. Raises ConversationError, and LimitError for arguments given as text."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ConversationError("expected an object with a function's name")
    name, arguments = function["name"], function.get("arguments")
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):
        try:
            arguments = parse_bounded(arguments or "{}")
        except LimitError:
            raise
        except ValueError as error:
            raise ConversationError(f"the arguments of '{name[:80]}' are not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise ConversationError(f"the arguments of '{name[:80]}' are not an object")
    kept = storable(arguments)
    if kept != arguments:
        problems.append(f"{place}: {REPLACED}")
    return {
        "id": _identifier(call),
        "type": "function",
        "function": {"name": name, "arguments": kept},
    }


def _identifier(call: Any) -> str:
    return str(call.get("id") or "") if isinstance(call, dict) else ""


def _call_text(call: Any) -> str:
    """Return an unreadable call as text, in the model's own notation where name and arguments are known."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if isinstance(function, dict) and isinstance(function.get("name"), str):
        arguments = function.get("arguments")
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return render_native(function["name"], written)
    return call if isinstance(call, str) else json.dumps(call, ensure_ascii=False)


def _split(read: Sequence[_Read]) -> Iterator[tuple[Message, list[str]]]:
    """Yield messages with at most one call, each followed by its answer; calls get unique identifiers.

    Each is paired with its problems. Answers without a call become user messages.
    """
    count, position = 0, 0
    while position < len(read):
        turn = read[position]
        position += 1
        if turn.message["role"] == "tool":
            yield _orphan(turn, position - 1)
            continue
        if not turn.calls:
            yield turn.message, turn.problems
            continue
        first = position
        while position < len(read) and read[position].message["role"] == "tool":
            position += 1
        answers, orphans = _matched(turn.calls, range(first, position), read)
        ends = position == len(read)
        message, problems = turn.message, turn.problems
        for index, (call, answer) in enumerate(zip(turn.calls, answers, strict=True)):
            if answer is None and not (ends and index == len(turn.calls) - 1):
                problems = [*problems, f"messages.{first - 1}: call {index} has no answer"]
            yield from _turn(
                message, call, f"call_{count}", problems, None if answer is None else read[answer]
            )
            message, problems = {"role": "assistant", "content": ""}, []
            count += 1
        yield from (_orphan(read[index], index) for index in orphans)


def _turn(
    message: Message, call: Message, name: str, problems: list[str], answer: _Read | None
) -> Iterator[tuple[Message, list[str]]]:
    """Yield a message with its call, and the answer."""
    if "text" in call:
        content = "\n".join(filter(None, (message["content"], call["text"])))
        yield {**message, "content": content}, problems
        if answer is not None:
            yield {"role": "user", "content": answer.message["content"]}, answer.problems
        return
    yield {**message, "tool_calls": [{**call, "id": name}]}, problems
    if answer is not None:
        content, function = answer.message["content"], call["function"]["name"]
        yield (
            {"role": "tool", "content": content, "tool_call_id": name, "name": function},
            answer.problems,
        )


def _orphan(answer: _Read, index: int) -> tuple[Message, list[str]]:
    message = {"role": "user", "content": answer.message["content"]}
    return message, [*answer.problems, f"messages.{index}: answers no call"]


def _matched(
    calls: Sequence[Message], places: Sequence[int], read: Sequence[_Read]
) -> tuple[list[int | None], list[int]]:
    """Return the index of each call's answer, and the indices of answers without a call.

    Answers are matched by identifier if any of them has the identifier of a call, else in order.
    """
    names = {place: read[place].message["tool_call_id"] for place in places}
    is_named = bool({call["id"] for call in calls} & set(names.values()) - {""})
    waiting: defaultdict[str, deque[int]] = defaultdict(deque)
    for place, name in names.items():
        waiting[name if is_named else ""].append(place)
    queues = [waiting[call["id"] if is_named else ""] for call in calls]
    answers = [queue.popleft() if queue else None for queue in queues]
    return answers, sorted(place for queue in waiting.values() for place in queue)
