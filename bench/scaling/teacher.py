"""Lessons of the testing agent: the failing test named by a task, imported into ``test_issue.py``.

A quickstart task's statement names a failing test of the repository, which is visible to agents. So a
statement can be turned into a test without a model. The lessons are replayed in sandboxes, and the testing
agent is trained on those selected by the keep rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from engine.tools.rendering import render_response
from engine.types import Task, TaskRow, ToolCall

_NAMED = re.compile(r"^Failing: (?P<path>[\w./-]+)\.py::(?P<test>\w+)", re.MULTILINE)


def lesson(task: Task) -> list[str] | None:
    """Return the responses that write a task's test and submit it; None where no test is named."""
    named = _NAMED.search(task.problem_statement)
    if named is None:
        return None
    content = f"from {named['path'].replace('/', '.')} import {named['test']}\n"
    path = f"{task.workdir}/test_issue.py"
    write = ToolCall(name="file_editor", arguments={"command": "create", "path": path, "file_text": content})
    submit = ToolCall(name="finish", arguments={"command": "submit"})
    return [render_response("test", write, "xml"), render_response("done", submit, "xml")]


def write_lessons(rows: Iterable[TaskRow], path: Path) -> int:
    """Write the lessons of tasks in the format of the replay policy; return their number."""
    lines = [
        json.dumps(
            {
                "key": {"task_id": row.task.id, "index": 0},
                "steps": [{"response": response} for response in responses],
            }
        )
        for row in rows
        if (responses := lesson(row.task)) is not None
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return len(lines)
