"""Conversion of a gold patch into the tool calls that apply it: view → edits → submit.

The plan is a generator that receives the step of each call. An edit whose text is not unique is retried
with more context.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Generator, Sequence
from typing import Any

from engine.errors import ModelError, PatchError
from engine.patches.structure import FileChange, Hunk, parse_patch
from engine.types import Step, TaskRow, ToolCall

Plan = Generator[tuple[str, ToolCall], Step, None]
"""Generator that yields a thought and a call, and receives the finished step."""

_NUMBERED = re.compile(r"(?:(\d{6,}|[ \d]{4}\d)  |([ \d]{5}\d) )(.*)", re.DOTALL)
"""Line of an editor view, numbered in our styles or in R2E-Gym's."""
_WIDER_BY = (8, 40, 160)
"""Lines of context around an edit in each retry."""


def plan(row: TaskRow) -> Plan:
    """Yield the tool calls that apply the gold patch to the task's repository.

    Raises:
        ModelError: the patch contains changes the tools cannot express (binary content, a symbolic
            link), or a file differs from the patch's base.
    """
    try:
        changes = parse_patch(row.answer.gold_patch)
    except PatchError as error:
        raise ModelError(f"the gold patch of {row.task.instance_id} cannot be read: {error}") from error
    for change in changes:
        if change.binary or (change.new_mode or "").startswith("12"):
            name = change.new_path or change.old_path
            raise ModelError(f"the gold patch changes {name}, which is binary or a link: no tool can do that")
        yield from _change_file(change, row.task.workdir)
    yield "done", ToolCall(name="finish", arguments={"command": "submit"})


def _change_file(change: FileChange, workdir: str) -> Plan:
    old = f"{workdir}/{change.old_path}" if change.old_path is not None else None
    new = f"{workdir}/{change.new_path}" if change.new_path is not None else None
    if new is None:
        yield from _run(f"remove {change.old_path}", f"rm -- {shlex.quote(str(old))}")
        return
    if old is None:
        text = "".join(hunk.new for hunk in change.hunks)
        yield from _edit(f"create {change.new_path}", "create", new, file_text=text)
    elif old != new:
        folder = shlex.quote(new.rsplit("/", 1)[0])
        yield from _run(
            f"rename {change.old_path}", f"mkdir -p {folder} && mv -- {shlex.quote(old)} {shlex.quote(new)}"
        )
    if change.new_mode is not None and (old is not None or change.new_mode == "100755"):
        yield from _run("set the mode", f"chmod {change.new_mode[-3:]} -- {shlex.quote(new)}")
    if old is not None and change.hunks:
        yield from _change_lines(new, change.hunks)


def _change_lines(path: str, hunks: Sequence[Hunk]) -> Plan:
    first = hunks[0]
    last_line = max(first.new_start, first.new_start + _line_count(first.old) - 1)
    view_range = [max(first.new_start, 1), max(last_line, 1)]
    yield (
        f"look at lines {view_range[0]}-{view_range[1]}",
        _editor_call("view", path, view_range=view_range),
    )
    for hunk in hunks:
        yield from _apply(path, hunk)


def _apply(path: str, hunk: Hunk) -> Plan:
    thought = f"line {hunk.new_start}: the change"
    if not hunk.old:
        if not hunk.new.endswith("\n"):
            raise ModelError(f"{path}: lines without a final newline cannot be inserted")
        yield from _edit(thought, "insert", path, insert_line=max(hunk.new_start - 1, 0), new_str=hunk.new)
        return
    step = yield thought, _replacement(path, hunk.old, hunk.new)
    for lines in _WIDER_BY:
        if not step.error:
            return
        first = max(1, hunk.new_start - lines)
        last = hunk.new_start + _line_count(hunk.old) - 1 + lines
        view = yield "more context", _editor_call("view", path, view_range=[first, last])
        before, after = _around(path, hunk, _numbered_lines(view.observation))
        step = yield thought, _replacement(path, before + hunk.old + after, before + hunk.new + after)
    if step.error:
        raise ModelError(f"the gold patch's change at {path}:{hunk.new_start} cannot be made: {step.error}")


def _around(path: str, hunk: Hunk, shown: dict[int, str]) -> tuple[str, str]:
    """Return the shown text before and after a hunk's old lines."""
    after_old = hunk.new_start + _line_count(hunk.old)
    inside = [shown.get(number) for number in range(hunk.new_start, after_old)]
    lines = hunk.old.removesuffix("\n").split("\n")
    if inside != lines and inside != [line.removesuffix("\r") for line in lines]:  # views drop the CR
        raise ModelError(f"{path}:{hunk.new_start} differs from the gold patch's base")
    before = "".join(f"{text}\n" for number, text in shown.items() if number < hunk.new_start)
    after = "".join(f"{text}\n" for number, text in shown.items() if number >= after_old)
    return before, after


def _replacement(path: str, old: str, new: str) -> ToolCall:
    # A newline that ends both texts is left out: the file's last line may not have one.
    for end in ("\r\n", "\n"):
        if old.endswith(end) and new.endswith(end) and len(old) > len(end):
            old, new = old.removesuffix(end), new.removesuffix(end)
            break
    return _editor_call("str_replace", path, old_str=old, new_str=new)


def _edit(thought: str, command: str, path: str, **arguments: Any) -> Plan:
    step = yield thought, _editor_call(command, path, **arguments)
    if step.error:
        raise ModelError(f"the gold patch's {command} of {path} cannot be made: {step.error}")


def _run(thought: str, command: str) -> Plan:
    step = yield thought, ToolCall(name="execute_bash", arguments={"cmd": command})
    if step.exit_code != 0:
        raise ModelError(f"'{command}' failed: {step.observation}")


def _editor_call(command: str, path: str, **arguments: Any) -> ToolCall:
    return ToolCall(name="file_editor", arguments={"command": command, "path": path, **arguments})


def _line_count(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n"))


def _numbered_lines(observation: str) -> dict[int, str]:
    shown: dict[int, str] = {}
    for line in observation.split("\n"):
        match = _NUMBERED.fullmatch(line)
        if match and (number := int(match[1] or match[2])) and (not shown or number == max(shown) + 1):
            shown[number] = match[3]
    return shown
