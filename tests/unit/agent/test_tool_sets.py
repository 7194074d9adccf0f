"""Published names of the tools over one implementation; responses of other systems' policies are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config.run import parse_run_config
from engine.errors import ConfigError
from engine.tools.parser import parse
from engine.tools.schemas import SWE_TOOLS
from engine.tools.tool_sets import OPENHANDS, R2E_GYM, TOOL_SETS, ToolSet
from engine.types import ToolCall

DATA = Path(__file__).parents[3].parent / "shared" / "data"
TRAJECTORIES = DATA / "r2e_gym" / "trajectories.jsonl"
VIEW = {"command": "view", "path": "/testbed/a.py"}


@pytest.mark.parametrize(
    ("published", "implementation"),
    [
        (("execute_bash", {"command": "ls"}), ("execute_bash", {"cmd": "ls"})),
        (("str_replace_editor", VIEW), ("file_editor", {**VIEW, "concise": False})),
        (("submit", {}), ("finish", {"command": "submit"})),
    ],
)
def test_published_names_call_the_same_tools(
    published: tuple[str, Any], implementation: tuple[str, Any]
) -> None:
    outer = ToolCall(name=published[0], arguments=published[1])
    inner = ToolCall(name=implementation[0], arguments=implementation[1])
    assert OPENHANDS.implementation_call(outer) == inner
    assert OPENHANDS.published_call(inner) == outer
    assert R2E_GYM.implementation_call(inner) == R2E_GYM.published_call(inner) == inner


def test_every_argument_of_a_published_tool_reaches_its_implementation() -> None:
    for alias in OPENHANDS.aliases:
        names = {alias.parameters.get(p.name, p.name) for p in alias.published.parameters}
        known = {p.name: p for p in alias.implementation.parameters}
        assert names | set(alias.constants) <= set(known)
        assert {name for name, p in known.items() if p.required} <= names | set(alias.constants)
    assert set(OPENHANDS.tools) == {alias.published.name for alias in OPENHANDS.aliases}
    assert R2E_GYM.tools == SWE_TOOLS


def test_a_tool_that_a_set_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="has no 'search'; its tools are execute_bash, str_replace_editor"):
        OPENHANDS.published_call(ToolCall(name="search", arguments={"search_term": "x"}))
    error = parse(
        "<function=finish><parameter=command>submit</parameter></function>", "xml", OPENHANDS.tools
    ).error
    assert "unknown tool 'finish'; the tools are execute_bash, str_replace_editor, submit" in error


def test_frozenlake_has_tools_of_its_own() -> None:
    data: dict[str, Any] = {"kind": "rollout", "name": "n", "environment": {"type": "frozenlake"}}
    parse_run_config(data)
    with pytest.raises(ConfigError, match="FrozenLake has tools of its own"):
        parse_run_config({**data, "agent": {"tools": "openhands"}})


def real_steps() -> Iterator[tuple[str, str]]:
    """Thought and action of every real step."""
    with TRAJECTORIES.open(encoding="utf-8") as file:
        for line in file:
            for step in json.loads(line)["trajectory_steps"]:
                yield step["thought"], step["action"]


def loose(action: str) -> tuple[str, dict[str, str]]:
    """A call as R2E-Gym reads it, by other means than the parser: split at the tags, values stripped."""
    head, *parameters = action.split("<parameter=")
    name = head.split("<function=")[1].split(">")[0]
    pairs = (part.split(">", 1) for part in parameters)
    return name, {key: value.rsplit("</parameter>", 1)[0].strip() for key, value in pairs}


def stripped(call: ToolCall) -> tuple[str, dict[str, str]]:
    """A call with its values as text without outer whitespace."""
    pairs = call.arguments.items()
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in pairs}
    return call.name, {key: text.strip() for key, text in texts.items()}


@pytest.mark.skipif(not TRAJECTORIES.exists(), reason="the sample trajectories are not on this machine")
def test_what_a_real_policy_wrote_is_read_as_it_was_meant() -> None:
    count = 0
    for thought, action in real_steps():
        name, arguments = loose(action)
        if "view_range" in arguments:
            arguments["view_range"] = json.dumps(json.loads(arguments["view_range"]))
        plain = thought.replace("<think>", "").replace("</think>", "")
        for text in (
            action,
            f"{thought}\n\n{action}",
            f"{thought}<tool_call>\n{action}\n</tool_call>",
            f"{plain} maybe {action} or so</think>\n\n{action}",
            f"{thought}{action}\nI used <function= here, in <tool_call>.",
        ):
            parsed = parse(text, "xml", OPENHANDS.tools)
            assert parsed.call is not None, (parsed.error, text)
            assert stripped(parsed.call) == (name, arguments)
            assert not parsed.thought.endswith("<tool_call>")
        twice = parse(f"{thought}{action}\n{action}", "xml", OPENHANDS.tools)
        assert "more than one tool call" in twice.error
        count += 1
    assert count > 400


@pytest.mark.parametrize("tool_set", TOOL_SETS.values(), ids=list(TOOL_SETS))
def test_declarations_are_complete(tool_set: ToolSet) -> None:
    for name, tool in tool_set.tools.items():
        function = tool.json_schema()["function"]
        assert function["name"] == name
        assert set(function["parameters"]["required"]) <= set(function["parameters"]["properties"])
        assert f"BEGIN FUNCTION #3: {name} ----" in tool.specification(3)
