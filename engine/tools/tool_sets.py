"""Tool sets: the names and parameters of the tools that published policies use.

Policies run with the names they were trained on; every set calls the same implementations, whose names are
those of ``r2e_gym``. To add a set: the schemas that differ, an ``Alias`` for each, an entry in ``TOOL_SETS``,
its name in ``engine.config.rollout``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engine.tools.schemas import (
    EXECUTE_BASH,
    FILE_EDITOR,
    FINISH,
    SUBMIT,
    SWE_TOOLS,
    THINK,
    Parameter,
    Tools,
    ToolSchema,
)
from engine.types import ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """Another name of a tool, with other names of its parameters."""

    published: ToolSchema
    implementation: ToolSchema
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Published name of a parameter → the implementation's, where they differ."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the implementation that the published tool does not have."""
    ignored: frozenset[str] = frozenset()
    """Parameters of the published tool that the implementation does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSet:
    """Tools of software-engineering tasks under the names that a family of policies uses."""

    tools: Tools
    """Published schemas by name, in prompt order."""
    aliases: tuple[Alias, ...] = ()

    def implementation_call(self, call: ToolCall) -> ToolCall:
        """Translate a published call into a call of the implementation."""
        for alias in self.aliases:
            if alias.published.name == call.name:
                arguments = {
                    alias.parameters.get(key, key): value
                    for key, value in call.arguments.items()
                    if key not in alias.ignored
                }
                return ToolCall(name=alias.implementation.name, arguments={**alias.constants, **arguments})
        return call

    def published_call(self, call: ToolCall) -> ToolCall:
        """Translate a call of the implementation into a published one, for responses that are composed.

        Raises:
            ValueError: the set does not have the tool.
        """
        for alias in self.aliases:
            if alias.implementation.name == call.name:
                names = {alias.parameters.get(p.name, p.name): p.name for p in alias.published.parameters}
                arguments = {names[key]: value for key, value in call.arguments.items() if key in names}
                return ToolCall(name=alias.published.name, arguments=arguments)
        if call.name not in self.tools:
            raise ValueError(f"the tool set has no '{call.name}'; its tools are {', '.join(self.tools)}")
        return call


_STR_REPLACE_EDITOR = replace(
    FILE_EDITOR,
    name="str_replace_editor",
    parameters=tuple(p for p in FILE_EDITOR.parameters if p.name != "concise"),
)
_BASH = replace(EXECUTE_BASH, parameters=tuple(replace(p, name="command") for p in EXECUTE_BASH.parameters))
_FINISH = replace(
    FINISH,
    parameters=(
        Parameter("message", "string", "A closing remark."),
        Parameter(
            "task_completed", "string", "Whether the task is done.", False, ("true", "false", "partial")
        ),
    ),
)
_SUBMIT = replace(FINISH, name=SUBMIT.name, parameters=())

R2E_GYM = ToolSet(tools=SWE_TOOLS)
OPENHANDS = ToolSet(
    tools={tool.name: tool for tool in (_BASH, _STR_REPLACE_EDITOR, THINK, _FINISH, _SUBMIT)},
    aliases=(
        Alias(published=_BASH, implementation=EXECUTE_BASH, parameters={"command": "cmd"}),
        Alias(published=_STR_REPLACE_EDITOR, implementation=FILE_EDITOR, constants={"concise": False}),
        Alias(
            published=_FINISH,
            implementation=FINISH,
            parameters={"message": "result"},
            constants={"command": "submit"},
            ignored=frozenset({"task_completed"}),
        ),
        Alias(published=_SUBMIT, implementation=FINISH, constants={"command": "submit"}),
    ),
)
TOOL_SETS: Mapping[str, ToolSet] = {"r2e_gym": R2E_GYM, "openhands": OPENHANDS}
"""Tool sets by their name in ``agent.tools``."""
