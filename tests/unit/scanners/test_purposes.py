"""Purposes of steps: by tool, by shell command, by what a command writes."""

from __future__ import annotations

from typing import Any

import pytest

from engine.scanners.purposes import Thinking, thinking_by_purpose
from engine.scanners.trajectory import ScannedTrajectory, read_step


@pytest.mark.parametrize(
    ("tool", "arguments", "purpose"),
    [
        ("search", {"search_term": "chunked"}, "locate"),
        ("file_editor", {"command": "view", "path": "/testbed/a.py"}, "locate"),
        ("execute_bash", {"command": "cd /testbed && grep -rn chunked . | head"}, "locate"),
        ("execute_bash", {"command": "git log -3"}, "locate"),
        ("file_editor", {"command": "str_replace", "path": "a.py", "old_str": "x", "new_str": "y"}, "edit"),
        ("execute_bash", {"command": "sed -i s/1/2/ a.py"}, "edit"),
        ("execute_bash", {"command": "python -m pytest -q tests"}, "test"),
        ("execute_bash", {"command": "python reproduce.py"}, "run"),
        ("execute_bash", {"command": 7}, "run"),
        ("finish", {"command": "submit"}, "submit"),
        ("strange_tool", {}, "other"),
        ("", {}, "other"),
    ],
)
def test_each_step_has_one_purpose(tool: str, arguments: dict[str, Any], purpose: str) -> None:
    step = read_step(index=0, tool=tool, arguments=arguments, thinking_tokens=120)
    sums = thinking_by_purpose(ScannedTrajectory([step]))
    assert {name: thinking for name, thinking in sums.items() if thinking.steps} == {
        purpose: Thinking(1, 120)
    }


def test_steps_with_unknown_thinking_are_left_out() -> None:
    steps = [
        read_step(index=i, tool="search", arguments={}, thinking_tokens=n) for i, n in enumerate((None, 90))
    ]
    assert thinking_by_purpose(ScannedTrajectory(steps))["locate"] == Thinking(1, 90)
    assert Thinking().mean is None
