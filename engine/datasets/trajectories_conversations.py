"""Reader of conversations (SWE-Gym's completions, OpenAI messages, ShareGPT) as trajectories.

As a command, ``python -m engine.datasets.trajectories_conversations FILE``, it prints what
``engine.datasets.imported_trajectories`` describes. The first message of the user is the task: of SWE agents'
prompts the part between the tags of the issue. A line that is no trajectory is reported on stderr and left
out; what else cannot be read is named in the ``error`` of its step.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from engine.datasets.conversations.base import Conversation, Message
from engine.datasets.conversations.outcomes import cost_of, end_of, error_of, patch_of, verdict_of
from engine.datasets.conversations.reading import Rejected, read_conversations
from engine.datasets.imported_trajectories import ImportedTrajectory, Reject, convert
from engine.datasets.store import with_content_id
from engine.datasets.trajectories_r2e import parse_action
from engine.errors import DatasetError
from engine.tools.parser import NativeCall
from engine.tools.rendering import render_turn
from engine.types import OpeningMessage, Step, Task, TaskAnswer, TaskRow, TerminationReason, ToolCall

_ISSUE_TAGS = ("github_issue", "issue_description", "pr_description")
_FOLDER_TAG = "uploaded_files"
"""Tag around the folder of the repository, in the prompts of OpenHands and of those made after them."""
_MAX_FOLDER = 300
_TASKS = frozenset({"instance", "ds"})
"""Fields with the task's row, which has the answer."""
_FINISHING = frozenset({"finish", "submit"})


def read_trajectories(path: Path, reject: Reject | None = None) -> Iterator[ImportedTrajectory]:
    """Yield the trajectories of a file, in order.

    Args:
        reject: called for each line that is none and is left out; None raises its error instead.

    Raises:
        DatasetError: the file cannot be read, or a line is malformed.
    """
    seen: Counter[str] = Counter()
    for number, found in read_conversations(path):
        if isinstance(found, Rejected):
            if reject is None:
                raise DatasetError(found.reason, row=number - 1)
            reject(number, found.reason)
            continue
        row = task_row(found, number)
        yield trajectory_of(found, number, row, seen[row.task.id])
        seen[row.task.id] += 1


def _between(text: str, tag: str) -> str | None:
    """Return what stands between a tag and its end; None where there is none."""
    _, opened, rest = text.partition(f"<{tag}>")
    found, closed, _ = rest.partition(f"</{tag}>")
    return found.strip() if opened and closed else None


def _issue(text: str) -> str:
    """Return what stands between the tags around an issue; the whole text without any."""
    issues = (_between(text, tag) for tag in _ISSUE_TAGS)
    return next((issue for issue in issues if issue is not None), text)


def _folder(text: str) -> str:
    """Return the repository's folder that a prompt names; empty where there is no single path."""
    found = (_between(text, _FOLDER_TAG) or "").rstrip("/")
    return found if found.startswith("/") and found.split() == [found] and len(found) <= _MAX_FOLDER else ""


def task_row(conversation: Conversation, number: int) -> TaskRow:
    """Return the task of a conversation.

    Args:
        conversation: its first message of the user is the task.
        number: of its line, which names a task without a name.
    """
    said = next((m["content"] for m in conversation.messages if m["role"] == "user"), "")
    task = Task(
        id="",
        instance_id=conversation.name or f"line-{number}",
        repo="",
        base_commit="",
        problem_statement=_issue(said),
        image="",
        workdir=_folder(said) or "/testbed",
        metadata={"format": "conversations"},
    )
    return with_content_id(TaskRow(task=task, answer=TaskAnswer(gold_patch=""), split="imported"))


def trajectory_of(
    conversation: Conversation, number: int, row: TaskRow, index: int, *, submitted: bool = False
) -> ImportedTrajectory:
    """Return a conversation as a trajectory.

    Args:
        conversation: with the published row's other fields.
        number: of its line.
        row: its task.
        index: position among the trajectories of the same task.
        submitted: whether it ends with a submission where neither its last step nor its fields say so.
    """
    steps = tuple(_steps(conversation.messages, conversation.problems))
    # most formats do not say why a conversation ended without a submission
    end = TerminationReason.SUBMITTED if submitted or steps[-1].done else TerminationReason.MAX_STEPS
    resolved, fields = conversation.resolved, conversation.fields
    return ImportedTrajectory(
        line=number,
        row=row,
        index=index,
        steps=steps,
        termination=end_of(fields) or end,
        patch=patch_of(fields),
        reward=None if resolved is None else float(resolved),
        verdict=verdict_of(resolved),
        cost=cost_of(fields),
        error=error_of(fields),
        tests=(),
        test_log="",
        grading_seconds=0.0,
        opening=tuple(_opening(conversation)),
        metadata={name: value for name, value in fields.items() if name not in _TASKS},
    )


def _opening(conversation: Conversation) -> Iterator[OpeningMessage]:
    """Yield the messages before the first one of the assistant, declared functions included."""
    for message in takewhile(lambda message: message["role"] != "assistant", conversation.messages):
        yield OpeningMessage(role=message["role"], content=message["content"])
    if conversation.tools:
        yield OpeningMessage.of_tools(conversation.tools)


def _steps(messages: Sequence[Message], problems: Mapping[int, str]) -> Iterator[Step]:
    """Yield the steps; each names the problems of its messages, the first one those before it as well."""
    starts = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    for position, (start, end) in enumerate(zip(starts, [*starts[1:], len(messages)], strict=True)):
        message = messages[start]
        calls = [one["function"] for one in message.get("tool_calls", ())]
        native = [NativeCall(name=call["name"], arguments=call["arguments"]) for call in calls]
        thinking, content = message.get("reasoning_content", ""), message["content"]
        call, error = parse_action(content)
        if calls:
            call, error = ToolCall(name=calls[0]["name"], arguments=calls[0]["arguments"]), ""
        odd = [problems[index] for index in range(start if position else 0, end) if index in problems]
        yield Step(
            index=position,
            thought=thinking or content.partition("<function=")[0].strip(),
            response=render_turn(thinking, content, native),
            call=call,
            error="; ".join(odd) or error,
            observation="\n\n".join(answer["content"] for answer in messages[start + 1 : end]),
            done=call is not None and call.name in _FINISHING,
            thinking_tokens=None,
        )


if __name__ == "__main__":
    sys.exit(convert(read_trajectories, "conversations, maybe compressed with gzip"))
