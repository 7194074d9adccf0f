"""Published tool names over one implementation; policies of other systems are supported."""

from __future__ import annotations

from typing import Any

import pytest

from engine.tools.parser import parse
from engine.tools.schemas import SWE_TOOLS, THINK, validate_call
from engine.tools.tool_sets import OPENHANDS, R2E_GYM
from engine.types import ToolCall

VIEW = {"command": "view", "path": "/testbed/a.py"}


@pytest.mark.parametrize(
    ("published", "implementation"),
    [
        (("execute_bash", {"command": "ls"}), ("execute_bash", {"cmd": "ls"})),
        (("str_replace_editor", VIEW), ("file_editor", {**VIEW, "concise": False})),
        (("finish", {"message": "done"}), ("finish", {"command": "submit", "result": "done"})),
    ],
)
def test_published_names_map_to_the_same_tools(
    published: tuple[str, Any], implementation: tuple[str, Any]
) -> None:
    outer = ToolCall(name=published[0], arguments=published[1])
    inner = ToolCall(name=implementation[0], arguments=implementation[1])
    assert OPENHANDS.implementation_call(outer) == inner
    assert OPENHANDS.published_call(inner) == outer
    assert R2E_GYM.implementation_call(inner) == R2E_GYM.published_call(inner) == inner


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("submit", {}),
        ("finish", {}),
        ("finish", {"task_completed": "true"}),
        ("finish", {"task_completed": None}),
    ],
)
def test_submit_and_finish_map_to_the_same_call(name: str, arguments: dict[str, Any]) -> None:
    call = validate_call(name, arguments, OPENHANDS.tools)
    finish = ToolCall(name="finish", arguments={"command": "submit"})
    assert call.name == name
    assert OPENHANDS.implementation_call(call) == finish


def test_think_calls_keep_their_name() -> None:
    call = validate_call("think", {"thought": "hm"}, OPENHANDS.tools)
    assert OPENHANDS.implementation_call(call) == OPENHANDS.published_call(call) == call


def test_every_argument_of_a_published_tool_reaches_its_implementation() -> None:
    for alias in OPENHANDS.aliases:
        kept = [p.name for p in alias.published.parameters if p.name not in alias.ignored]
        names = {alias.parameters.get(name, name) for name in kept}
        known = {p.name: p for p in alias.implementation.parameters}
        assert names | set(alias.constants) <= set(known)
        assert {name for name, p in known.items() if p.required} <= names | set(alias.constants)
    assert set(OPENHANDS.tools) == {alias.published.name for alias in OPENHANDS.aliases} | {THINK.name}
    assert R2E_GYM.tools == SWE_TOOLS


def test_tools_missing_from_a_set_are_refused() -> None:
    with pytest.raises(ValueError, match="has no 'search'; its tools are execute_bash, str_replace_editor"):
        OPENHANDS.published_call(ToolCall(name="search", arguments={"search_term": "x"}))
    error = parse(
        "<function=search><parameter=search_term>x</parameter></function>", "xml", OPENHANDS.tools
    ).error
    assert "unknown tool 'search'; the tools are execute_bash, str_replace_editor, think, finish" in error
