"""Reader of trajectories in Harbor's interchange format (ATIF 1.0 to 1.8), plain JSON or JSON Lines.

As a command, ``python -m engine.datasets.trajectories_atif FILE``, it prints the NDJSON that
``engine.datasets.imported_trajectories`` describes. The format has no outcome: known parts are read from the
root's ``extra`` (``conversations.outcomes``), others are unknown. Messages are read like those of
conversations; a step with several calls becomes several steps.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.datasets.conversations.base import Conversation, ConversationError, checked, storable_fields
from engine.datasets.conversations.outcomes import resolved_of
from engine.datasets.imported_trajectories import ImportedTrajectory, Reject, convert
from engine.datasets.importers.fields import number as find_number
from engine.datasets.trajectories_conversations import task_row, trajectory_of
from engine.errors import DatasetError
from engine.reading import LimitError, parse_bounded, read_bounded, read_bounded_lines
from engine.types import Step

_MAX_BYTES = 256 << 20
_MAX_COUNT = 2**31
_SOURCES = {"system": "system", "user": "user", "agent": "assistant"}
_READ = frozenset({"steps", "extra"})
_NOT_JSON = "not JSON"


def read_trajectories(path: Path, reject: Reject | None = None) -> Iterator[ImportedTrajectory]:
    """Yield the trajectories of a file, in order.

    Args:
        path: the file.
        reject: called for each malformed document, which is left out; None raises its error instead.

    Raises:
        DatasetError: the file is too large, or a document is malformed.
        OSError: the file cannot be read.
    """
    seen: Counter[str] = Counter()
    for number, document, problem in _documents(path):
        try:
            if problem:
                raise ConversationError(problem)
            conversation, turns = _conversation(document)
        except (ConversationError, LimitError) as error:
            if reject is None:
                raise DatasetError(str(error), row=number - 1) from error
            reject(number, str(error))
            continue
        row = task_row(conversation, number)
        trajectory = trajectory_of(
            conversation, number, row, seen[row.task.id], submitted=not turns[-1].get("tool_calls")
        )
        yield replace(trajectory, steps=tuple(_with_metrics(trajectory.steps, turns)))
        seen[row.task.id] += 1


def _documents(path: Path) -> Iterator[tuple[int, Any, str]]:
    """Yield number (from 1), content and problem of each document; a malformed one has no content."""
    if path.stat().st_size > _MAX_BYTES:
        raise DatasetError(f"larger than {_MAX_BYTES >> 20} MiB; split it into files of one trajectory")
    try:
        whole = parse_bounded(read_bounded(path, _MAX_BYTES))
    except ValueError as error:
        if isinstance(error, LimitError) and next(_lines(path))[2] == _NOT_JSON:
            raise DatasetError(str(error)) from None  # one document over many lines
        yield from _lines(path)
        return
    for number, document in enumerate(whole if isinstance(whole, list) else [whole], start=1):
        yield number, document, ""


def _lines(path: Path) -> Iterator[tuple[int, Any, str]]:
    """Yield number, content and problem of each document of a JSON Lines file."""
    for number, line, problem in read_bounded_lines(path):
        document = None
        try:
            document = None if problem else parse_bounded(line)
        except LimitError as error:
            problem = str(error)
        except ValueError:
            problem = _NOT_JSON
        yield number, document, problem


def _conversation(document: Any) -> tuple[Conversation, list[Mapping[str, Any]]]:
    """Return a document's conversation and its agent steps. Raises ConversationError."""
    if not isinstance(document, dict) or not isinstance(document.get("steps"), list):
        raise ConversationError("steps: expected a list; ATIF has its trajectory there")
    agent, extra, steps = _object(document, "agent"), _object(document, "extra"), document["steps"]
    fields = {**{name: value for name, value in document.items() if name not in _READ}, **extra}
    if model := agent.get("model_name"):
        fields.setdefault("model", model)
    conversation = checked(
        [message for step in steps for message in _messages(step)],
        agent.get("tool_definitions"),
        name=str(extra.get("instance_id") or ""),
        resolved=resolved_of(fields),
        fields=storable_fields(fields),
    )
    return conversation, [step for step in steps if isinstance(step, dict) and step.get("source") == "agent"]


def _messages(step: Any) -> Iterator[Any]:
    """Yield the messages of a step: the message with its calls, then the answers."""
    if not isinstance(step, dict):
        yield step
        return
    source = str(step.get("source"))
    message = {"role": _SOURCES.get(source, f"source {source}"), "content": step.get("message")}
    if step.get("reasoning_content"):
        message["reasoning_content"] = step["reasoning_content"]
    calls = step.get("tool_calls")
    if calls:
        message["tool_calls"] = list(map(_call, calls)) if isinstance(calls, list) else calls
    yield message
    results = _object(step, "observation").get("results")
    for result in results if isinstance(results, list) else ():
        if isinstance(result, dict):
            answer = {"role": "tool" if calls else "user", "content": result.get("content")}
            yield answer | {"tool_call_id": result.get("source_call_id")}


def _call(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    function = {"name": call.get("function_name"), "arguments": call.get("arguments", {})}
    return {"id": call.get("tool_call_id"), "function": function}


def _with_metrics(steps: Sequence[Step], turns: Sequence[Mapping[str, Any]]) -> Iterator[Step]:
    """Yield steps with the metrics of their turns; a turn has one step per call, and at least one."""
    position = 0
    for turn in turns:
        calls = turn.get("tool_calls") or ()
        count = len(calls) if calls and isinstance(calls, list) else 1
        metrics = _object(turn, "metrics")
        cost = find_number(metrics, "cost_usd")
        yield replace(
            steps[position],
            prompt_tokens=_count(metrics, "prompt_tokens"),
            cached_tokens=_count(metrics, "cached_tokens"),
            generated_tokens=_count(metrics, "completion_tokens"),
            cost=cost if cost is not None and cost >= 0 else None,
        )
        yield from steps[position + 1 : position + count]
        position += count


def _object(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a field that is an object; empty if it is missing or of another type."""
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def _count(metrics: Mapping[str, Any], name: str) -> int:
    value = find_number(metrics, name)
    return int(value) if value is not None and 0 <= value < _MAX_COUNT else 0


if __name__ == "__main__":
    sys.exit(convert(read_trajectories, "trajectories in ATIF"))
