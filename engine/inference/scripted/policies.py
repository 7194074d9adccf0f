"""Policies without a model: gold patch, no-op, and replay of stored responses.

They run through the same tokens, parser, tools and grading as a model, so an oracle run proves a
dataset and a no-op run proves its tests. To add one: a class over ``ScriptedPolicy``
or ``CallingPolicy``, its settings in ``engine.config.rollout``.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from pathlib import Path

from engine.errors import ModelError
from engine.inference.base import Generation, GenerationContext, GenerationRequest, TokenPolicy
from engine.inference.scripted.oracle import plan
from engine.models.builtin.bytes_tokenizer import BytesTokenizer
from engine.models.chat.base import Chat
from engine.models.chat.chatml import ChatML
from engine.tools.formats import ToolFormat
from engine.tools.parser import NativeCall
from engine.tools.rendering import render_response, render_thinking
from engine.tools.tool_sets import R2E_GYM, ToolSet
from engine.types import ToolCall


class ScriptedPolicy(TokenPolicy):
    """Policy whose responses are computed.

    Log-probabilities are 0: the policy is certain.
    """

    name = "scripted"
    max_context: int | None = None

    def __init__(self, *, chat: Chat | None = None) -> None:
        self.chat: Chat = chat or ChatML(BytesTokenizer())
        self.version = 0

    async def generate(self, request: GenerationRequest) -> Generation:
        """Return the response's ids, cut at the request's limit. Raises ModelError."""
        ids = self._reply_ids(request.context)
        kept = tuple(ids[: request.sampling.max_tokens])
        return Generation(
            ids=kept,
            logprobs=(0.0,) * len(kept),
            versions=(self.version,) * len(kept),
            stopped=len(kept) == len(ids),
        )

    async def close(self) -> None:
        """Do nothing; there are no resources."""

    @abstractmethod
    def _reply_ids(self, context: GenerationContext) -> list[int]:
        """Return the ids of the next turn, its end included. Raises ModelError."""


class CallingPolicy(ScriptedPolicy):
    """Scripted policy that calls tools.

    Args:
        tool_format: how its calls are written.
        tool_set: the names it calls the tools by.
        chat: writes its turns.
    """

    def __init__(
        self, *, tool_format: ToolFormat = "xml", tool_set: ToolSet = R2E_GYM, chat: Chat | None = None
    ) -> None:
        super().__init__(chat=chat)
        self._tool_format = tool_format
        self._tool_set = tool_set

    def _reply_ids(self, context: GenerationContext) -> list[int]:
        thought, implementation_call = self._next(context)
        call = self._tool_set.published_call(implementation_call)
        if self._tool_format == "native":
            native = NativeCall(name=call.name, arguments=call.arguments)
            return self.chat.reply_ids(f"{render_thinking(thought)}\n\n", [native])
        try:
            return self.chat.reply_ids(render_response(thought, call, self._tool_format))
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


class ReplayPolicy(ScriptedPolicy):
    """Policy that replays the responses of stored trajectories, step by step.

    Args:
        responses: texts by task id and index; iteration and phase are ignored, so that trajectories
            of one can be replayed in another.
    """

    name = "replay"

    def __init__(self, responses: dict[tuple[str, int], list[str]], *, chat: Chat | None = None) -> None:
        super().__init__(chat=chat)
        self._responses = responses

    @classmethod
    def from_file(cls, path: Path, *, chat: Chat | None = None) -> ReplayPolicy:
        """Read a JSONL file written by ``engine.rollout.serialise``; the first of a key wins.

        Raises:
            ModelError: the file cannot be read; the message names the line.
        """
        responses: dict[tuple[str, int], list[str]] = {}
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except OSError as error:
            raise ModelError(f"cannot read the stored trajectories: {error}") from error
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                key = (str(record["key"]["task_id"]), int(record["key"]["index"]))
                texts = [str(step["response"]) for step in record["steps"]]
            except (ValueError, KeyError, TypeError) as error:
                raise ModelError(
                    f"{path.name} line {number} is not a stored trajectory: {error!r}"
                ) from error
            responses.setdefault(key, texts)
        return cls(responses, chat=chat)

    def _reply_ids(self, context: GenerationContext) -> list[int]:
        key = (context.key.task_id, context.key.index)
        if key not in self._responses:
            raise ModelError(f"no stored trajectory of task {key[0]}, index {key[1]}")
        texts = self._responses[key]
        if len(context.steps) >= len(texts):
            raise ModelError(f"the stored trajectory of task {key[0]} has only {len(texts)} steps")
        return self.chat.reply_ids(texts[len(context.steps)])
