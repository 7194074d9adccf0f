"""Page view of steps: long texts are truncated, and steps are loaded in windows.

The page shows some steps in full and the others as one line each, to keep it small.
``trajectory_steps.js`` loads the full steps in the background; without JavaScript the lines are links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from webapp.rollouts.contexts.actions import ActionBody, action_body, first_line, short_path
from webapp.rollouts.models.trajectories import Step
from webapp.rollouts.selectors.steps import OutlineRow

OBSERVATION_LINES = 200
OBSERVATION_CHARS = 20_000
THOUGHT_LINES = 400
THOUGHT_CHARS = 40_000
STATEMENT_LINES, STATEMENT_CHARS = 1_000, 50_000
"""Limits of a problem statement, a prompt message or a field of an imported file."""
PAGE_STEPS, PAGE_CHARS = 20, 48_000
"""Steps, and characters of their texts, that a page initially shows in full."""
WHOLE_LINES, WHOLE_CHARS = 20_000, 2_000_000
"""Lines of a diff, and characters of any other argument, that are shown on demand."""
WINDOW_STEPS, WINDOW_CHARS = 40, 200_000
"""Steps, and characters of their texts, that each later request returns in full."""
_OUTLINE_TITLE = 60


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
    shown = "\n".join(text[: chars + 1].split("\n", lines)[:lines])[:chars]
    num_lines = text.count("\n") + 1 if text else 0
    return CutText(shown, shown.count("\n") + 1 if shown else 0, num_lines, len(text))


@dataclass(frozen=True, slots=True)
class StepView:
    """One step in full, ready for the template."""

    step: Step
    body: ActionBody
    thought: CutText
    observation: CutText

    @property
    def num_chars(self) -> int:
        """Return the approximate number of characters that the page shows."""
        shown = len(self.thought.text) + len(self.observation.text) + len(self.body.text)
        return shown + sum(len(line.html) for line in self.body.diff.lines) if self.body.diff else shown


def step_view(step: Step) -> StepView:
    """Return a step ready for the template."""
    return StepView(
        step=step,
        body=action_body(step),
        thought=cut_text(step.thought, lines=THOUGHT_LINES, chars=THOUGHT_CHARS),
        observation=cut_text(step.observation),
    )


def window(steps: Sequence[Step], *, chars: int) -> tuple[StepView, ...]:
    """Return the first steps in full up to a number of characters, but at least one."""
    views: list[StepView] = []
    left = chars
    for step in steps:
        view = step_view(step)
        left -= view.num_chars
        if views and left < 0:
            break
        views.append(view)
    return tuple(views)


def plain_part(step: Step, part: str) -> str:
    """Return a complete part of a step as text: ``observation``, ``thought``, ``response`` or ``action``."""
    if part == "action":
        return "\n\n".join(f"{name}:\n{value}" for name, value in step.arguments.items())
    return str(getattr(step, part))


def whole_part(step: Step, part: str) -> dict[str, object]:
    """Return the template context of a complete part of a step."""
    if part == "action":
        return {
            "body": action_body(step, limit=WHOLE_LINES, text_chars=WHOLE_CHARS, argument_chars=WHOLE_CHARS)
        }
    return {"text": plain_part(step, part)}


@dataclass(frozen=True, slots=True)
class StepEntry:
    """A step in the strip and, where ``view`` is None, as one line in the list."""

    row: OutlineRow
    title: str
    seconds: float
    """Model and tool time."""
    thinking_width: str
    """Thinking tokens in per cent of the trajectory's maximum, for the strip."""
    seconds_width: str
    view: StepView | None


def step_entries(rows: Sequence[OutlineRow], views: Sequence[StepView]) -> tuple[StepEntry, ...]:
    """Return all steps of a trajectory, some of them in full."""
    shown = {view.step.index: view for view in views}
    most_thinking = max((row.thinking_tokens or 0 for row in rows), default=0)
    most_seconds = max((row.model_seconds + row.tool_seconds for row in rows), default=0.0)
    return tuple(
        StepEntry(
            row=row,
            title=outline_title(row),
            seconds=row.model_seconds + row.tool_seconds,
            thinking_width=_share(row.thinking_tokens or 0, most_thinking),
            seconds_width=_share(row.model_seconds + row.tool_seconds, most_seconds),
            view=shown.get(row.index),
        )
        for row in rows
    )


def outline_title(row: OutlineRow) -> str:
    """Return one line about a step's action: its command, path or search term, shortened."""
    if not row.tool:
        return "no tool call could be read"
    texts = (
        (row.path, row.term, row.command)
        if row.action in ("view", "edit")
        else (row.term, row.command, row.path)
    )
    return first_line(short_path(next((text for text in texts if text), row.tool)))[:_OUTLINE_TITLE]


def _share(value: float, most: float) -> str:
    return f"{min(100.0, 100 * value / most):.0f}" if most else "0"
