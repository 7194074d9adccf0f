"""Reader of conversations in files of other trainers and systems, plain or gzip-compressed.

| row | read as |
|---|---|
| ``messages`` | OpenAI, TRL, datasets of SWE-Gym, SWE-smith and R2E-Gym: roles, contents, ``tools`` |
| ``trajectory`` | nebius's datasets, the same |
| ``prompt``, ``completion`` | TRL, verifiers: the same in two parts, or strings |
| ``conversations`` | ShareGPT: ``from`` and ``value``, ``system``, ``tools`` |
| ``raw_completions`` | SWE-Gym's ``output.with_completions.jsonl.gz``: the last completion |

A line that cannot be read, or is longer than ``MAX_LINE``, is reported with its number and reason; reading
goes on. Unreadable parts of messages are reported as well (``base.checked``). ``outcomes`` reads the other
fields.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.datasets.conversations.base import (
    Conversation,
    ConversationError,
    checked,
    from_json,
    storable_fields,
)
from engine.datasets.conversations.outcomes import resolved_of
from engine.errors import DatasetError
from engine.reading import LimitError, parse_bounded, read_bounded_lines


@dataclass(frozen=True, slots=True)
class Rejected:
    """A line that is not a conversation, with the reason."""

    reason: str


def read_conversations(path: Path) -> Iterator[tuple[int, Conversation | Rejected]]:
    """Yield each line's number (from 1) with its conversation or rejection.

    Empty lines are skipped.

    Raises:
        DatasetError: the file cannot be read or decompressed.
    """
    try:
        for number, line, problem in read_bounded_lines(path):
            yield number, Rejected(problem) if problem else _read(line)
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"cannot read the conversations in {path}: {error}") from error


def _read(line: bytes) -> Conversation | Rejected:
    try:
        return conversation_of(parse_bounded(line))
    except (ConversationError, LimitError) as error:
        return Rejected(str(error))
    except ValueError as error:
        return Rejected(f"not JSON: {error}")


def conversation_of(row: Any) -> Conversation:
    """Convert a row of any known format to a conversation. Raises ConversationError."""
    if not isinstance(row, dict):
        raise ConversationError("expected an object")
    messages, tools, used = _messages(row)
    return checked(
        messages,
        tools,
        name=str(row.get("instance_id") or row.get("task_id") or ""),
        resolved=resolved_of(row),
        fields=storable_fields({name: value for name, value in row.items() if name not in used | {"tools"}}),
    )


def _messages(row: dict[str, Any]) -> tuple[Any, Any, set[str]]:
    """Return a row's messages, its tools, and the names of the fields that were read.

    Of SWE-Gym's completions, the last one is read.
    """
    tools = row.get("tools")
    if "raw_completions" in row:
        completion = row["raw_completions"]
        completion = completion[-1] if isinstance(completion, list) and completion else completion
        if not isinstance(completion, dict):
            raise ConversationError("raw_completions: there is none")
        return completion.get("messages"), completion.get("tools"), {"raw_completions"}
    if "conversations" in row:
        return _sharegpt(row), tools, {"conversations", "system"}
    for name in ("messages", "trajectory"):
        if name in row:
            return row[name], tools, {name}
    if "prompt" in row and "completion" in row:
        turns = [*_turns(row["prompt"], "user"), *_turns(row["completion"], "assistant")]
        return turns, tools, {"prompt", "completion"}
    known = ", ".join(sorted(map(str, row))[:12]) or "none"
    raise ConversationError(
        "expected messages, trajectory, conversations, raw_completions, or prompt and completion; "
        f"its fields: {known}"
    )


def _turns(part: Any, role: str) -> list[Any]:
    """Return the messages of a prompt or a completion: a list, its JSON text, or the text of one message."""
    listed = from_json(part)
    return listed if isinstance(listed, list) else [{"role": role, "content": part}]


def _sharegpt(row: dict[str, Any]) -> list[Any]:
    turns = from_json(row["conversations"])
    if not isinstance(turns, list):
        raise ConversationError("conversations: expected a list")
    messages = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    return messages + [_sharegpt_turn(turn) if isinstance(turn, dict) else turn for turn in turns]


def _sharegpt_turn(turn: dict[str, Any]) -> dict[str, Any]:
    role, value = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    if role == "function_call":
        return {"role": "assistant", "content": "", "tool_calls": from_json(value) or [value]}
    return {"role": role, "content": value}
