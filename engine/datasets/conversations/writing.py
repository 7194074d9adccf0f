"""Writers of conversations in the file formats of other trainers.

| format | file |
|---|---|
| ``openai`` | ``{"messages": [...], "tools": [...]}``, arguments as JSON text |
| ``trl`` | TRL's conversational form: the same, arguments as objects |
| ``sharegpt`` | ``{"conversations": [{"from", "value"}], "system"}``, ``dataset_info.json`` (LLaMA-Factory) |
| ``preference`` | TRL's preference pairs: ``prompt``, ``chosen``, ``rejected`` |

To add a format, write a function from conversations to rows and add it to ``FORMATS``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.datasets.conversations.base import Conversation, ConversationError, Message
from engine.files import atomic_open, atomic_write

Row = dict[str, Any]
DATASET_INFO = "dataset_info.json"
_SPEAKERS = {"user": "human", "assistant": "gpt"}


def openai_rows(conversations: Iterable[Conversation]) -> Iterator[Row]:
    """Yield rows of OpenAI's fine-tuning format."""
    for conversation in conversations:
        yield _with_tools([_as_text(message) for message in conversation.messages], conversation)


def trl_rows(conversations: Iterable[Conversation]) -> Iterator[Row]:
    """Yield rows of TRL's conversational format."""
    for conversation in conversations:
        yield _with_tools(list(conversation.messages), conversation)


def sharegpt_rows(conversations: Iterable[Conversation]) -> Iterator[Row]:
    """Yield rows of ShareGPT. Raises ConversationError like ``sharegpt_row``."""
    return map(sharegpt_row, conversations)


def sharegpt_row(conversation: Conversation) -> Row:
    """Return a row of ShareGPT; consecutive user messages are merged, a trailing one is dropped.

    Raises:
        ConversationError: the conversation has native calls (``text_calls.to_text``), does not begin with a
            user message, or has two consecutive assistant messages.
    """
    messages = list(conversation.messages)
    system = messages.pop(0)["content"] if messages[0]["role"] == "system" else ""
    turns: list[Row] = []
    for message in messages:
        speaker = _SPEAKERS.get(message["role"])
        if speaker is None or "tool_calls" in message:
            raise ConversationError("ShareGPT needs calls and their answers as text, and one system message")
        if speaker == "human" and turns and turns[-1]["from"] == speaker:
            turns[-1]["value"] += f"\n\n{message['content']}"
            continue
        if speaker != ("human", "gpt")[len(turns) % 2]:
            raise ConversationError(f"turn {len(turns)} is the assistant's; ShareGPT needs the user's")
        turns.append({"from": speaker, "value": message["content"]})
    return {"conversations": turns[: len(turns) - len(turns) % 2], "system": system}


def preference_rows(conversations: Iterable[Conversation]) -> Iterator[Row]:
    """Yield preference pairs: a resolved and an unresolved conversation with the same prompt."""
    solved: defaultdict[str, list[Conversation]] = defaultdict(list)
    unsolved: defaultdict[str, list[Conversation]] = defaultdict(list)
    for conversation in conversations:
        if conversation.resolved is not None:
            sides = solved if conversation.resolved else unsolved
            sides[json.dumps([conversation.name, _prompt(conversation), conversation.tools])].append(
                conversation
            )
    for key, chosen in solved.items():
        for good, bad in zip(chosen, unsolved[key], strict=False):
            start = len(_prompt(good))
            row = {
                "prompt": _prompt(good),
                "chosen": list(good.messages[start:]),
                "rejected": list(bad.messages[start:]),
            }
            yield row | ({"tools": list(good.tools)} if good.tools else {})


FORMATS: Mapping[str, Callable[[Iterable[Conversation]], Iterator[Row]]] = {
    "openai": openai_rows,
    "trl": trl_rows,
    "sharegpt": sharegpt_rows,
    "preference": preference_rows,
}


def write_conversations(conversations: Iterable[Conversation], path: Path, format_name: str) -> int:
    """Write conversations as JSON Lines; return the number of rows.

    With ``sharegpt``, the file is registered in the folder's ``dataset_info.json`` under its stem.

    Raises:
        ConversationError: the format cannot express a conversation, or ``dataset_info.json`` is damaged;
            nothing is written.
    """
    info = path.with_name(DATASET_INFO)
    known = _known(info) if format_name == "sharegpt" else {}
    count = 0
    with atomic_open(path) as file:
        for row in FORMATS[format_name](conversations):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    if format_name == "sharegpt":
        atomic_write(info, json.dumps(known | {path.stem: _entry(path)}, indent=2) + "\n")
    return count


def _known(info: Path) -> Row:
    """Return the datasets that are registered already. Raises ConversationError."""
    try:
        known = json.loads(info.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConversationError(f"{info} is not JSON ({error}); repair or remove it") from error
    if not isinstance(known, dict):
        raise ConversationError(f"{info} is not a JSON object; repair or remove it")
    return known


def _entry(path: Path) -> Row:
    return {
        "file_name": path.name,
        "formatting": "sharegpt",
        "columns": {"messages": "conversations", "system": "system"},
        "tags": {
            "role_tag": "from",
            "content_tag": "value",
            "user_tag": "human",
            "assistant_tag": "gpt",
        },
    }


def _with_tools(messages: list[Message], conversation: Conversation) -> Row:
    return {"messages": messages, **({"tools": list(conversation.tools)} if conversation.tools else {})}


def _as_text(message: Message) -> Message:
    """Return a message with its calls' arguments as JSON text."""
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _prompt(conversation: Conversation) -> list[Message]:
    """Return the messages before the first assistant message."""
    roles = [message["role"] for message in conversation.messages]
    return list(conversation.messages[: roles.index("assistant")])
