"""Reader of conversations (SWE-Gym's completions, OpenAI messages, ShareGPT) as trajectories.

As a command, ``python -m engine.datasets.trajectories_conversations FILE``, it prints the NDJSON that
``engine.datasets.imported_trajectories`` describes. The first user message is the task; in prompts of SWE
agents, only the part between the issue tags. A line that is not a trajectory is reported on stderr and left
out; other unreadable parts are named in the ``error`` of their step.
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
"""Tag around the repository's folder, in the prompts of OpenHands and its derivatives."""
_MAX_FOLDER = 300
_TASKS = frozenset({"instance", "ds"})
"""Fields with the task's row, which includes the answer."""
_FINISHING = frozenset({"finish", "submit"})


def read_trajectories(path: Path, reject: Reject | None = None) -> Iterator[ImportedTrajectory]:
    """Yield the trajectories of a file, in order.

    Args:
        reject: called for each malformed line, which is left out; None raises its error instead.

    Raises:
        DatasetError: the file cannot be read, or a line is malformed.
    """
    seen: Counter[str] = Counter()
    for number, conversation in read_conversations(path):
        if isinstance(conversation, Rejected):
            if reject is None:
                raise DatasetError(conversation.reason, row=number - 1)
            reject(number, conversation.reason)
            continue
        row = task_row(conversation, number)
        yield trajectory_of(conversation, number, row, seen[row.task.id])
        seen[row.task.id] += 1


def _between(text: str, tag: str) -> str | None:
    """Return the text between a tag and its end tag; None if one is missing."""
    _, opened, rest = text.partition(f"<{tag}>")
    content, closed, _ = rest.partition(f"</{tag}>")
    return content.strip() if opened and closed else None


def _issue(text: str) -> str:
    """Return the text between the issue tags; the whole text without them."""
    issues = (_between(text, tag) for tag in _ISSUE_TAGS)
    return next((issue for issue in issues if issue is not None), text)


def _folder(text: str) -> str:
    """Return the repository folder named in a prompt; empty unless it is a single absolute path."""
    path = (_between(text, _FOLDER_TAG) or "").rstrip("/")
    return path if path.startswith("/") and path.split() == [path] and len(path) <= _MAX_FOLDER else ""


def task_row(conversation: Conversation, number: int) -> TaskRow:
    """Return the task of a conversation.

    Args:
        conversation: its first user message is the task.
        number: line number, which names an unnamed task.
    """
    prompt = next((m["content"] for m in conversation.messages if m["role"] == "user"), "")
    task = Task(
        id="",
        instance_id=conversation.name or f"line-{number}",
        repo="",
        base_commit="",
        problem_statement=_issue(prompt),
        image="",
        workdir=_folder(prompt) or "/testbed",
        metadata={"format": "conversations"},
    )
    return with_content_id(TaskRow(task=task, answer=TaskAnswer(gold_patch=""), split="imported"))


def trajectory_of(
    conversation: Conversation, number: int, row: TaskRow, index: int, *, submitted: bool = False
) -> ImportedTrajectory:
    """Convert a conversation to a trajectory.

    Args:
        conversation: the messages and the published row's other fields.
        number: line number.
        row: the task.
        index: position among the trajectories of the same task.
        submitted: whether it ended with a submission, if neither its last step nor its fields say so.
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
    """Yield the messages before the first assistant message, declared functions included."""
    for message in takewhile(lambda message: message["role"] != "assistant", conversation.messages):
        yield OpeningMessage(role=message["role"], content=message["content"])
    if conversation.tools:
        yield OpeningMessage.of_tools(conversation.tools)


def _steps(messages: Sequence[Message], problems: Mapping[int, str]) -> Iterator[Step]:
    """Yield the steps with their messages' problems; the first also names those of earlier messages."""
    starts = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    for position, (start, end) in enumerate(zip(starts, [*starts[1:], len(messages)], strict=True)):
        message = messages[start]
        calls = [tool_call["function"] for tool_call in message.get("tool_calls", ())]
        native = [NativeCall(name=call["name"], arguments=call["arguments"]) for call in calls]
        thinking, content = message.get("reasoning_content", ""), message["content"]
        call, error = parse_action(content)
        if calls:
            call, error = ToolCall(name=calls[0]["name"], arguments=calls[0]["arguments"]), ""
        unread = [problems[index] for index in range(start if position else 0, end) if index in problems]
        yield Step(
            index=position,
            thought=thinking or content.partition("<function=")[0].strip(),
            response=render_turn(thinking, content, native),
            call=call,
            error="; ".join(unread) or error,
            observation="\n\n".join(answer["content"] for answer in messages[start + 1 : end]),
            done=call is not None and call.name in _FINISHING,
            thinking_tokens=None,
        )


if __name__ == "__main__":
    sys.exit(convert(read_trajectories, "conversations, plain or gzip-compressed"))
