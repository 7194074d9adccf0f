"""A step as the page shows it: the action rendered by its kind, long texts cut and counted.

To add a kind of action: a branch in ``_body`` and one in ``trajectories/_action.html``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from webapp.contexts.rollout.diffs import Diff, added_diff, edit_diff
from webapp.models import Step

OBSERVATION_LINES = 200
OBSERVATION_CHARS = 100_000
THOUGHT_CHARS = 100_000
ACTIONS = ("command", "search", "view", "edit", "finish", "other", "none")


@dataclass(frozen=True, slots=True)
class CutText:
    """The first lines of a text, and the number of all lines."""

    text: str
    shown_lines: int
    num_lines: int
    num_chars: int

    @property
    def cut(self) -> bool:
        """Return whether part of the text is left out."""
        return len(self.text) < self.num_chars


def cut_text(text: str, *, lines: int = OBSERVATION_LINES, chars: int = OBSERVATION_CHARS) -> CutText:
    """Return the first ``lines`` lines, at most ``chars`` characters."""
    all_lines = text.split("\n")
    shown = "\n".join(all_lines[:lines])[:chars]
    return CutText(shown, shown.count("\n") + 1 if shown else 0, len(all_lines) if text else 0, len(text))


@dataclass(frozen=True, slots=True)
class ActionBody:
    """Content of the action, without its numbers."""

    kind: str
    """``command``, ``edit``, ``view``, ``search``, ``finish``, ``call`` (any other tool) or ``none``."""
    title: str
    """One-line summary: the command, the path or the search term."""
    note: str = ""
    text: str = ""
    """A command of several lines, a submission's text, the raw response where nothing was parsed."""
    diff: Diff | None = None
    arguments: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class StepView:
    """One step, ready for the template."""

    step: Step
    body: ActionBody
    thought: CutText
    observation: CutText
    thinking_width: str
    """Thinking tokens against the longest thinking of the trajectory, per cent, for the strip."""
    seconds_width: str

    @property
    def seconds(self) -> float:
        """Return the sum of model and tool time."""
        return self.step.model_seconds + self.step.tool_seconds


def _text(arguments: Mapping[str, Any], key: str) -> str:
    value = arguments.get(key)
    return value if isinstance(value, str) else "" if value is None else str(value)


def _rest(arguments: Mapping[str, Any], *shown: str) -> tuple[tuple[str, str], ...]:
    return tuple((str(k), str(v)) for k, v in arguments.items() if k not in shown and v is not None)


def _short(path: str) -> str:
    """Return a path without the usual working folder in front."""
    return path.removeprefix("/testbed/") or path


def _file_editor(arguments: Mapping[str, Any]) -> ActionBody:
    command, path = _text(arguments, "command"), _text(arguments, "path")
    match command:
        case "str_replace":
            diff = edit_diff(_text(arguments, "old_str"), _text(arguments, "new_str"), path)
            rest = _rest(arguments, "command", "path", "old_str", "new_str")
            return ActionBody("edit", _short(path), "replace", diff=diff, arguments=rest)
        case "create":
            diff = added_diff(_text(arguments, "file_text"), path)
            return ActionBody(
                "edit",
                _short(path),
                "create",
                diff=diff,
                arguments=_rest(arguments, "command", "path", "file_text"),
            )
        case "insert":
            diff = added_diff(_text(arguments, "new_str"), path)
            note = f"insert after line {_text(arguments, 'insert_line') or '?'}"
            return ActionBody("edit", _short(path), note, diff=diff)
        case "view":
            span = arguments.get("view_range")
            bounds = isinstance(span, list | tuple) and len(span) == 2
            note = f"lines {span[0]}–{span[1]}" if bounds and span else _text(arguments, "view_range")
            return ActionBody(
                "view", _short(path), note, arguments=_rest(arguments, "command", "path", "view_range")
            )
        case _:
            return ActionBody(
                "edit", _short(path), command.replace("_", " "), arguments=_rest(arguments, "command", "path")
            )


def action_body(step: Step) -> ActionBody:
    """Return the rendered action of a step."""
    arguments = step.arguments if isinstance(step.arguments, Mapping) else {}
    match step.tool:
        case "":
            return ActionBody("none", "no tool call could be read", text=step.response)
        case "execute_bash":
            command = _text(arguments, "command") or _text(arguments, "cmd")
            return ActionBody(
                "command",
                command.split("\n")[0][:200],
                text=command,
                arguments=_rest(arguments, "command", "cmd"),
            )
        case "search":
            where = _text(arguments, "path")
            rest = _rest(arguments, "search_term", "path")
            return ActionBody(
                "search", _text(arguments, "search_term"), f"in {where}" if where else "", arguments=rest
            )
        case "finish" | "submit":
            text = _text(arguments, "result")
            return ActionBody("finish", "submit", text=text, arguments=_rest(arguments, "command", "result"))
        case "file_editor" | "str_replace_editor":
            return _file_editor(arguments)
        case _:
            return ActionBody("call", step.tool, arguments=_rest(arguments))


def _share(value: float, most: float) -> str:
    return f"{min(100.0, 100 * value / most):.1f}" if most else "0"


def step_views(steps: list[Step], *, most_thinking: int, most_seconds: float) -> tuple[StepView, ...]:
    """Return steps ready for the template; the two maxima are the trajectory's, for the strip's bars."""
    return tuple(
        StepView(
            step=step,
            body=action_body(step),
            thought=cut_text(step.thought, lines=2000, chars=THOUGHT_CHARS),
            observation=cut_text(step.observation),
            thinking_width=_share(step.thinking_tokens or 0, most_thinking),
            seconds_width=_share(step.model_seconds + step.tool_seconds, most_seconds),
        )
        for step in steps
    )
