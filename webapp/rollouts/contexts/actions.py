"""Page view of an action, by kind of tool: command, edit (as a diff), view, search, submission.

To add a kind of tool, add its names to ``engine.scanners.tool_kinds`` and a function here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine.scanners import tool_kinds
from engine.scanners.tool_kinds import COMMANDS, CONTENTS, PATHS, TERMS
from webapp.rollouts.contexts.diffs import EDIT_LINES, Diff, added_diff, edit_diff
from webapp.rollouts.models.trajectories import Step

ACTIONS = ("command", "search", "view", "edit", "finish", "other", "none")
TITLE_CHARS = 200
TEXT_CHARS = 20_000
ARGUMENT_CHARS = 2_000
_NAMES = ("file_name", "filename", "name")
_PLACES = (*PATHS, "dir")
_REPLACED = (("search", "replace"), ("old_string", "new_string"), ("old_str", "new_str"))
"""Arguments with the replaced and the new text."""


@dataclass(frozen=True, slots=True)
class Argument:
    """Argument outside of the title and main text; ``num_chars`` is its complete length."""

    name: str
    text: str
    num_chars: int

    @property
    def cut(self) -> bool:
        """Return whether part of the text is left out."""
        return len(self.text) < self.num_chars


@dataclass(frozen=True, slots=True)
class ActionBody:
    """Content of an action, without token counts and times."""

    kind: str
    """``command``, ``edit``, ``view``, ``search``, ``finish``, ``call`` (any other tool) or ``none``."""
    title: str
    """One-line summary: the command, the path or the search term."""
    note: str = ""
    text: str = ""
    """Command, submission text, or raw response if no call was parsed; truncated if it is long."""
    num_chars: int = 0
    """Length of the complete text."""
    diff: Diff | None = None
    arguments: tuple[Argument, ...] = ()

    @property
    def cut(self) -> bool:
        """Return whether part of the action is left out."""
        has_cut_diff = self.diff is not None and self.diff.cut
        return (
            has_cut_diff
            or len(self.text) < self.num_chars
            or any(argument.cut for argument in self.arguments)
        )


def _text(arguments: Mapping[str, Any], *keys: str) -> str:
    value = next((arguments[key] for key in keys if arguments.get(key) is not None), "")
    return value if isinstance(value, str) else str(value)


def _rest(arguments: Mapping[str, Any], *shown: str) -> tuple[Argument, ...]:
    texts = ((str(k), str(v)) for k, v in arguments.items() if k not in shown and v is not None)
    return tuple(Argument(name, text, len(text)) for name, text in texts)


def short_path(path: str) -> str:
    """Return a path without the usual working folder in front."""
    return path.removeprefix("/testbed/") or path


def first_line(text: str) -> str:
    """Return the first non-blank line of a text, shortened."""
    return text.strip().partition("\n")[0].strip()[:TITLE_CHARS]


def action_body(
    step: Step,
    *,
    limit: int = EDIT_LINES,
    text_chars: int = TEXT_CHARS,
    argument_chars: int = ARGUMENT_CHARS,
) -> ActionBody:
    """Return the page view of a step's action, truncated.

    Args:
        limit: maximum lines of a diff.
        text_chars: maximum characters of a command or another main text.
        argument_chars: maximum characters of each other argument.
    """
    body = _body(step, limit)
    arguments = tuple(Argument(a.name, a.text[:argument_chars], a.num_chars) for a in body.arguments)
    return replace(body, text=body.text[:text_chars], num_chars=len(body.text), arguments=arguments)


def _body(step: Step, limit: int) -> ActionBody:
    arguments = step.arguments if isinstance(step.arguments, Mapping) else {}
    tool = step.tool
    if not tool:
        return ActionBody("none", "no tool call could be read", text=step.response)
    if tool in tool_kinds.EDITOR_TOOLS:
        return _editor(arguments, limit)
    if tool in tool_kinds.COMMAND_TOOLS | tool_kinds.CODE_TOOLS:
        command = _text(arguments, *COMMANDS)
        note = "" if tool in tool_kinds.COMMAND_TOOLS else "Python"
        rest = _rest(arguments, *COMMANDS)
        return ActionBody("command", first_line(command), note, text=command, arguments=rest)
    if tool in tool_kinds.SEARCH_TOOLS:
        terms = TERMS if _text(arguments, *TERMS) else _NAMES
        places = [name for name in _PLACES if name not in terms]
        where = _text(arguments, *places)
        rest = _rest(arguments, *terms, *places)
        title = first_line(_text(arguments, *terms)) or tool
        return ActionBody("search", title, f"in {where[:TITLE_CHARS]}" if where else "", arguments=rest)
    if tool in tool_kinds.VIEW_TOOLS:
        path = short_path(_text(arguments, *PATHS))[:TITLE_CHARS]
        return ActionBody("view", path or tool.replace("_", " "), arguments=_rest(arguments, *PATHS))
    if tool in tool_kinds.WRITE_TOOLS:
        return _created(arguments, limit)
    if tool in tool_kinds.REPLACE_TOOLS:
        return _replacement(tool, arguments, limit)
    if tool in tool_kinds.FINISH_TOOLS:
        shown = ("result", "message")
        return ActionBody(
            "finish", "submit", text=_text(arguments, *shown), arguments=_rest(arguments, "command", *shown)
        )
    return ActionBody("call", tool, arguments=_rest(arguments))


def _editor(arguments: Mapping[str, Any], limit: int) -> ActionBody:
    command, path = _text(arguments, "command"), _text(arguments, "path")
    title = short_path(path)[:TITLE_CHARS]
    match command:
        case "str_replace":
            diff = edit_diff(_text(arguments, "old_str"), _text(arguments, "new_str"), path, limit)
            rest = _rest(arguments, "command", "path", "old_str", "new_str")
            return ActionBody("edit", title, "replace", diff=diff, arguments=rest)
        case "create":
            return _created(arguments, limit)
        case "insert":
            diff = added_diff(_text(arguments, "new_str"), path, limit)
            note = f"insert after line {_text(arguments, 'insert_line')[:20] or '?'}"
            rest = _rest(arguments, "command", "path", "new_str", "insert_line")
            return ActionBody("edit", title, note, diff=diff, arguments=rest)
        case "view":
            rest = _rest(arguments, "command", "path", "view_range")
            return ActionBody("view", title, _span(arguments.get("view_range")), arguments=rest)
        case "undo_edit":
            return ActionBody(
                "edit", title, "undo the last edit", arguments=_rest(arguments, "command", "path")
            )
        case _:
            note = command.replace("_", " ")[:TITLE_CHARS]
            return ActionBody("edit", title, note, arguments=_rest(arguments, "command", "path"))


def _replacement(tool: str, arguments: Mapping[str, Any], limit: int) -> ActionBody:
    names = next((pair for pair in _REPLACED if all(name in arguments for name in pair)), None)
    if names is None:
        return ActionBody("call", tool, arguments=_rest(arguments))
    path, (old, new) = _text(arguments, *PATHS), names
    diff = edit_diff(_text(arguments, old), _text(arguments, new), path, limit)
    title = short_path(path)[:TITLE_CHARS] or tool
    return ActionBody("edit", title, "replace", diff=diff, arguments=_rest(arguments, *PATHS, *names))


def _created(arguments: Mapping[str, Any], limit: int) -> ActionBody:
    path = _text(arguments, *PATHS)
    diff = added_diff(_text(arguments, *CONTENTS), path, limit)
    rest = _rest(arguments, "command", *PATHS, *CONTENTS)
    return ActionBody("edit", short_path(path)[:TITLE_CHARS], "create", diff=diff, arguments=rest)


def _span(view_range: Any) -> str:
    """Return ``lines 1–50`` for ``[1, 50]``, also if the model passed it as text; -1 is the end."""
    if view_range is None:
        return ""
    is_list = isinstance(view_range, list | tuple)
    numbers = view_range if is_list else str(view_range).strip("[] ").split(",")
    try:
        first, last = (int(number) for number in numbers)
    except (TypeError, ValueError):
        return str(view_range)[:TITLE_CHARS]
    return f"lines {first} to the end" if last == -1 else f"lines {first}–{last}"
