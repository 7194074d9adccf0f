"""Policies without a model: gold patch, no-op, and replay of stored responses.

Their messages pass through the same parser, tools and grading as a model's: an oracle run validates a
dataset, a no-op run its tests. They report no tokens. To add one: a subclass of ``ScriptedPolicy`` or
``CallingPolicy``, its settings in ``engine.config.policies``.
"""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelError
from engine.events.stored_trajectories import LONGEST_LINE
from engine.inference.base import ChatPolicy, ChatRequest, ChatResponse, GenerationContext
from engine.inference.scripted.oracle import plan
from engine.models.chat.thinking import split_thinking
from engine.reading import parse_bounded, read_bounded_lines
from engine.tools.formats import ToolFormat
from engine.tools.parser import NativeCall, read_native
from engine.tools.rendering import render_call, render_response
from engine.tools.tool_sets import R2E_GYM, ToolSet
from engine.types import ToolCall


class ScriptedPolicy(ChatPolicy):
    """Policy that computes its responses without a model."""

    is_portable = True
    name = "scripted"
    version = 0
    max_context: int | None = None

    async def close(self) -> None:
        """Do nothing; there are no resources."""


class CallingPolicy(ScriptedPolicy):
    """Scripted policy that calls tools.

    Args:
        tool_format: format of the calls.
        tool_set: published names of the tools.
    """

    def __init__(self, *, tool_format: ToolFormat = "xml", tool_set: ToolSet = R2E_GYM) -> None:
        self._tool_format = tool_format
        self._tool_set = tool_set

    async def respond(self, request: ChatRequest) -> ChatResponse:
        """Return the next call. Raises ModelError."""
        thought, implementation_call = self._next(request.context)
        call = self._tool_set.published_call(implementation_call)
        if self._tool_format == "native":
            native = NativeCall(name=call.name, arguments=call.arguments)
            return ChatResponse(content="", thinking=thought, calls=(native,))
        try:
            if self._tool_format == "words":
                return ChatResponse(content=render_response(thought, call, "words"))
            return ChatResponse(content=render_call(call, self._tool_format), thinking=thought)
        except ValueError as error:
            raise ModelError(f"the {self.name} policy's call cannot be written: {error}") from error

    @abstractmethod
    def _next(self, context: GenerationContext) -> tuple[str, ToolCall]:
        """Return the next turn's thought, and its call in the implementation's names. Raises ModelError."""


class NoopPolicy(CallingPolicy):
    """Policy that submits at once without any change."""

    name = "noop"

    def _next(self, _context: GenerationContext) -> tuple[str, ToolCall]:
        return "done", ToolCall(name="finish", arguments={"command": "submit"})


class OraclePolicy(CallingPolicy):
    """Policy that applies the gold patch with the tools, then submits."""

    name = "oracle"

    def _next(self, context: GenerationContext) -> tuple[str, ToolCall]:
        steps = plan(context.row)
        thought, call = next(steps)
        for step in context.steps:
            thought, call = steps.send(step)
        return thought, call


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """Response of a stored trajectory."""

    text: str
    call: NativeCall | None
    """Call parsed from the text; None without one."""


class ReplayPolicy(ScriptedPolicy):
    """Policy that replays the responses of stored trajectories, step by step.

    Where functions are declared, calls are parsed from a response's text in ChatML's format. For text in
    another family's format, which is not parsed, the stored call is used.

    Args:
        responses: responses by task id and index; iteration and phase may differ in the replay.
    """

    name = "replay"

    def __init__(self, responses: Mapping[tuple[str, int], list[StoredResponse]]) -> None:
        self._responses = responses

    @classmethod
    def from_file(cls, path: Path) -> ReplayPolicy:
        """Read stored trajectories from a JSONL file.

        In files of ``engine.rollout.serialise`` the first record of a key wins. In files of
        ``engine.events.stored_trajectories`` a task's records are indexed in file order.

        Raises:
            ModelError: the file cannot be read; the message names the line.
        """
        responses: dict[tuple[str, int], list[StoredResponse]] = {}
        exported: Counter[str] = Counter()
        try:
            for number, line, problem in read_bounded_lines(path, longest=LONGEST_LINE):
                try:
                    if problem:
                        raise ValueError(problem)
                    record = parse_bounded(line)
                    if "key" in record:
                        key = (str(record["key"]["task_id"]), int(record["key"]["index"]))
                    else:
                        task = str(record["task_id"])
                        key = (task, exported[task])
                        exported[task] += 1
                    stored = [_stored_response(step) for step in record["steps"]]
                except (ValueError, KeyError, TypeError) as error:
                    raise ModelError(
                        f"{path.name} line {number} is not a stored trajectory: {error!r}"
                    ) from error
                responses.setdefault(key, stored)
        except (OSError, EOFError, zlib.error) as error:
            raise ModelError(f"cannot read the stored trajectories: {error}") from error
        return cls(responses)

    async def respond(self, request: ChatRequest) -> ChatResponse:
        """Return the stored response of this step. Raises ModelError."""
        context = request.context
        key = (context.key.task_id, context.key.index)
        if key not in self._responses:
            raise ModelError(f"no stored trajectory of task {key[0]}, index {key[1]}")
        stored = self._responses[key]
        if len(context.steps) >= len(stored):
            raise ModelError(f"the stored trajectory of task {key[0]} has only {len(stored)} steps")
        response = stored[len(context.steps)]
        return _native_response(response) if request.tools else ChatResponse(content=response.text)


def _stored_response(step: Mapping[str, Any]) -> StoredResponse:
    call = step.get("call")
    if step.get("tool"):
        call = {"name": step["tool"], "arguments": step["arguments"]}
    native = NativeCall(name=str(call["name"]), arguments=dict(call["arguments"])) if call else None
    return StoredResponse(str(step["response"]), native)


def _native_response(stored: StoredResponse) -> ChatResponse:
    """Return the message from which a stored text was rendered (``engine.tools.rendering.render_turn``)."""
    thinking, rest, closed = split_thinking(stored.text)
    if not closed:
        return ChatResponse(content=stored.text)
    content, calls = read_native(rest if thinking is None else rest.removeprefix("\n\n"))
    if not calls and stored.call is not None:
        calls = (stored.call,)
    return ChatResponse(
        content=content.removesuffix("\n") if calls else content,
        thinking=(thinking or "").removeprefix("\n").removesuffix("\n"),
        calls=calls,
    )
