"""Problem statements of injected faults, used by curation and by the warm start.

One module for both, so that warm-start statements and task statements cannot diverge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Hint = Literal["none", "function", "line"]


def problem_statement(
    path: str,
    function: str,
    first: int,
    last: int,
    suspects: Sequence[tuple[int, str]],
    failing: Sequence[str],
    exception: str,
    hint: Hint,
) -> str:
    """Return the statement of a task.

    Args:
        path: file relative to the workdir.
        function: qualified name of the broken function.
        first: line of its ``def``, counted from 1.
        last: its last line.
        suspects: line number and text of each suspect line, shown with ``hint="line"``.
        failing: node ids of failing tests; the first is shown, the others are counted.
        exception: class name of the exception in the first failing test; empty when unknown.
        hint: how exactly the statement locates the symptom.

    Example (``hint="line"``)::

        boltons/iterutils.py: `chunked` (lines 310-322) is broken.
        line 316: `while lo < hi:`
        Failing: tests/test_iterutils.py::test_chunked (AssertionError)
    """
    lines = []
    if hint != "none":
        lines.append(f"{path}: `{function}` (lines {first}-{last}) is broken.")
    if hint == "line":
        lines.extend(f"line {number}: `{text.strip()}`" for number, text in suspects)
    if failing:
        raised = f" ({exception})" if exception else ""
        others = f" and {len(failing) - 1} more" if len(failing) > 1 else ""
        lines.append(f"Failing: {failing[0]}{raised}{others}")
    return "\n".join(lines)
