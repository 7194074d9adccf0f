"""Conversations from files of other trainers and systems, plain or compressed with gzip.

| row | read as |
|---|---|
| ``messages`` | OpenAI, TRL, SWE-Gym's and R2E-Gym's sets: roles, contents, ``tools`` |
| ``conversations`` | ShareGPT: ``from`` and ``value``, ``system`` |
| ``raw_completions`` | SWE-Gym's ``output.with_completions.jsonl.gz``: the last completion |

A line that cannot be read costs that line only: it is reported with its number and its reason.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.datasets.conversations.base import Conversation, ConversationError, checked
from engine.errors import DatasetError

_ROLES = {"human": "user", "gpt": "assistant", "user": "user", "assistant": "assistant", "system": "system"}
_GZIP = b"\x1f\x8b"

MAX_NESTING = 100
"""Levels of lists and objects; readers and writers downstream work by recursion."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Reason why a line is no conversation."""

    reason: str


def read_conversations(path: Path) -> Iterator[tuple[int, Conversation | Rejected]]:
    """Yield each line's number, from 1, and its conversation, or the reason why it is none.

    Empty lines are skipped.

    Raises:
        DatasetError: the file cannot be read or decompressed.
    """
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == _GZIP
        with gzip.open(path) if is_gzip else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _read(line)
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"cannot read the conversations in {path}: {error}") from error


def _read(line: bytes) -> Conversation | Rejected:
    try:
        found = conversation_of(json.loads(line))
        if _nesting([found.messages, found.tools]) > MAX_NESTING:
            return Rejected(f"nested more than {MAX_NESTING} levels deep")
        json.dumps([found.name, found.messages, found.tools], ensure_ascii=False).encode()
    except ConversationError as error:
        return Rejected(str(error))
    except UnicodeEncodeError:
        return Rejected("not text: it holds half of a surrogate pair")
    except ValueError as error:
        return Rejected(f"not JSON: {error}")
    except RecursionError:
        return Rejected(f"nested more than {MAX_NESTING} levels deep")
    return found


def _nesting(value: Any) -> int:
    """Return how many lists and objects deep a value is."""
    level, depth = [value], 0
    while level := [one for one in level if isinstance(one, dict | list | tuple)]:
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return depth


def conversation_of(row: Any) -> Conversation:
    """Return a row of any known format as a conversation. Raises ConversationError."""
    if not isinstance(row, dict):
        raise ConversationError("expected an object")
    name, resolved = str(row.get("instance_id") or row.get("task_id") or ""), _resolved(row)
    if "raw_completions" in row:
        found = row["raw_completions"]
        if not isinstance(found, dict):
            raise ConversationError("raw_completions: there is none")
        return checked(found.get("messages"), found.get("tools"), name=name, resolved=resolved)
    if "conversations" in row:
        return checked(_sharegpt(row), name=name, resolved=resolved)
    if "messages" in row:
        return checked(row["messages"], row.get("tools"), name=name, resolved=resolved)
    known = ", ".join(sorted(map(str, row))[:12]) or "none"
    raise ConversationError(f"expected messages, conversations or raw_completions; its fields: {known}")


def _resolved(row: dict[str, Any]) -> bool | None:
    report = row.get("report")
    value = report.get("resolved") if isinstance(report, dict) else row.get("resolved")
    return bool(value) if isinstance(value, bool | int) else None


def _sharegpt(row: dict[str, Any]) -> list[dict[str, Any]]:
    turns = row["conversations"]
    if not isinstance(turns, list):
        raise ConversationError("conversations: expected a list")
    messages = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    for index, turn in enumerate(turns):
        if not isinstance(turn, dict) or turn.get("from") not in _ROLES:
            raise ConversationError(f"conversations.{index}.from: expected one of {', '.join(_ROLES)}")
        messages.append({"role": _ROLES[turn["from"]], "content": turn.get("value")})
    return messages
