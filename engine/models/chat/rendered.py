"""Conversations of a published model in its family's format.

New turns are appended to the sampled ids, by the family's renderer or with its chat template. The template is
applied to a placeholder for the conversation so far, the new messages and the next header; its text after the
placeholder is the extension. The cost of a turn does not grow with the conversation.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from renderers.base import Renderer, ToolCallParseStatus
from renderers.default import DefaultRenderer

from engine.errors import CheckpointError, ModelError, describe_error
from engine.models.chat.base import Message, Reply, ToolDeclaration
from engine.models.chat.calls import CallStyle, arguments_json, call_style, read_calls
from engine.models.chat.harmony import Harmony
from engine.models.chat.published import PublishedTokenizer
from engine.models.chat.rendering import PROBE_TOOL, TemplateTokenizer, open_renderer
from engine.models.chat.template import RENDER_ERRORS
from engine.models.chat.thinking import read_thinking, read_written_thinking, split_thinking
from engine.tools.parser import THINK_END, THINK_START, NativeCall

_PLACEHOLDER = "PLACEHOLDERzq7"
_MARKERS = ((THINK_START, THINK_END), ("[THINK]", "[/THINK]"), ("<|channel>", "<channel|>"))
_CALL_TAGS = ("<tool_call>", "[TOOL_CALLS]")
_USER = {"role": "user", "content": "x"}
_RESULT = {"role": "tool", "content": "x", "name": "probe", "tool_call_id": "call00000"}


class RenderedChat:
    """Conversations of a published model (``engine.models.chat.base.Chat``).

    Args:
        tokenizer: ``transformers``' fast tokenizer.
        renderer: name of the family's renderer in ``renderers``; None: by the chat template.
        extra_stop_ids: end-of-sequence ids of the generation settings.
        thinking: whether responses may think.

    Raises:
        CheckpointError: the tokenizer does not support conversations; the message has the reason.
    """

    def __init__(
        self,
        tokenizer: Any,
        renderer: str | None,
        *,
        extra_stop_ids: frozenset[int] = frozenset(),
        thinking: bool = True,
    ) -> None:
        self.tokenizer = PublishedTokenizer(tokenizer)
        self._published, self._name, self._extra_stop_ids = tokenizer, renderer, extra_stop_ids
        self._writer = TemplateTokenizer(tokenizer, self.tokenizer, thinking=thinking)
        self._renderer: Renderer = open_renderer(self._writer, renderer, thinking=thinking)
        self._folds_system = False
        self._harmony = Harmony(self.tokenizer) if renderer == "gpt-oss" else None
        self._markers = self._thinking_markers()
        self._template = isinstance(self._renderer, DefaultRenderer)
        self._close = self._turn_end() if self._template else None
        self._folds_system = self._refuses_system()
        self.stop_ids = self._all_stop_ids()
        self._skip: list[int] = [] if thinking else self._empty_thinking()

    @property
    def source(self) -> str:
        """Return the source of the format: the name of a renderer, or ``chat template``."""
        return "chat template" if self._template else str(self._name)

    def open(self, messages: Sequence[Message], tools: Sequence[ToolDeclaration] = ()) -> list[int]:
        """Return the ids of a whole conversation, the header of the model's turn included.

        Raises:
            ModelError: the family cannot express the messages, or has no function calls.
        """
        if tools:
            self._require_calls()
        return [*self._render(messages, tools, header=True), *self._skip]

    def extend(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[ToolDeclaration] = (),
    ) -> list[int] | None:
        """Return the ids that follow a completion; None where the family cannot continue after it."""
        prompt, completion = list(prompt_ids), list(completion_ids)
        if self._template:
            following = self._following(messages)
            if following is not None and completion and completion[-1] in self.stop_ids:
                following = following[1:]
        else:
            following = self._bridge(prompt, completion, messages, tools)
        return None if following is None else [*following, *self._skip]

    def parse(
        self,
        completion_ids: Sequence[int],
        prompt_ids: Sequence[int] = (),
        tools: Sequence[ToolDeclaration] = (),
    ) -> Reply:
        """Parse a response: thinking by the family's markers, calls where tools are declared."""
        prompt, ids = list(prompt_ids), list(completion_ids)
        if self._harmony is not None:
            reply = self._harmony.read(ids, prompt)
            return reply if tools else _with_calls(reply, reply.content, ())
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        if self._markers is not None:
            reply = read_thinking(self.tokenizer, ids, self._markers, opened=self._opened(prompt))
        else:
            opened = self.tokenizer.decode(prompt[-16:]).rstrip().endswith(THINK_START)
            reply = read_written_thinking(self.tokenizer, ids, opened=opened)
        return self._read_calls(reply, completion_ids, prompt, tools) if tools else reply

    def reply_ids(self, text: str, calls: Sequence[NativeCall] = ()) -> list[int]:
        """Return the ids a model would have sampled for a response, the end of the turn included.

        Raises:
            ModelError: the family's format cannot express the calls.
        """
        if self._harmony is not None:
            return self._harmony.write(text, calls)
        thinking, rest, closed = split_thinking(text)
        ids = self.tokenizer.encode(text)
        if self._markers is not None and thinking is not None:
            start, end = self._markers
            ids = [*([] if self._opens_thinking else [start]), *self.tokenizer.encode(thinking)]
            ids += [end, *self.tokenizer.encode(rest)] if closed else []
        for call in calls:
            ids += self._call_part(call)
        return [*ids, self._end_of_call if calls else self._end_of_turn]

    def without_thinking(self) -> RenderedChat:
        """Return the same conversations with thinking switched off.

        Uses the template's ``enable_thinking``, else an empty thinking block before every response. gpt-oss
        cannot switch thinking off and gets low reasoning effort.
        """
        return self._unthinking

    @functools.cached_property
    def _unthinking(self) -> RenderedChat:
        return RenderedChat(self._published, self._name, extra_stop_ids=self._extra_stop_ids, thinking=False)

    def _render(
        self, messages: Sequence[Message], tools: Sequence[ToolDeclaration], *, header: bool
    ) -> list[int]:
        declared: Any = list(tools) or None
        if self._folds_system:
            messages = _fold_system(messages)
        try:
            protected: Any = [self.tokenizer.protect_message(message) for message in messages]
            return list(self._renderer.render_ids(protected, tools=declared, add_generation_prompt=header))
        except RENDER_ERRORS as error:
            raise ModelError(
                f"the model's chat format cannot express the conversation: {describe_error(error)}"
            ) from error

    def _bridge(
        self,
        prompt: list[int],
        completion: list[int],
        messages: Sequence[Message],
        tools: Sequence[ToolDeclaration],
    ) -> list[int] | None:
        new: Any = [self.tokenizer.protect_message(message) for message in messages]
        declared: Any = list(tools) or None
        if completion and completion[-1] in self.stop_ids:
            # Only the last id of a finished response matters to the next turn. Renderers would refuse one
            # that seems to end inside its thinking (GLM's: one without any marker).
            completion = [*(self._markers or ()), completion[-1]]
        rendered = self._renderer.bridge_to_next_turn(prompt, completion, new, tools=declared)
        length = len(prompt) + len(completion)
        if rendered is None or list(rendered.token_ids[:length]) != prompt + completion:
            return None
        return list(rendered.token_ids[length:])

    def _following(self, messages: Sequence[Message]) -> list[int] | None:
        """Return the ids that the template writes from the end of the model's last turn on."""
        last: dict[str, Any] = {"role": "assistant", "content": _PLACEHOLDER}
        results = [message for message in messages if message["role"] == "tool"]
        if results:
            calls = [_probe_call(result["name"], _PLACEHOLDER, result["tool_call_id"]) for result in results]
            last = {"role": "assistant", "content": "", "tool_calls": calls}
        conversation = [_USER, last, *(self.tokenizer.protect_message(message) for message in messages)]
        try:
            text = self._writer.written(conversation, add_generation_prompt=True)
        except RENDER_ERRORS:
            return None
        _, placeholder, tail = text.rpartition(_PLACEHOLDER)
        ids = self.tokenizer.encode_template(tail)
        ends = self.stop_ids if self._close is None else self.stop_ids | {self._close}
        first = next((position for position, i in enumerate(ids) if i in ends), None)
        return ids[first:] if placeholder and first is not None else None

    def _turn_end(self) -> int | None:
        """Return the id that the template writes at the end of the model's turn; None for plain text."""
        conversation = [_USER, {"role": "assistant", "content": _PLACEHOLDER}, _USER]
        try:
            text = self._writer.written(conversation, add_generation_prompt=True)
        except RENDER_ERRORS as error:
            raise CheckpointError(
                f"the chat template in {self._writer.name_or_path} refuses a conversation of three turns: "
                f"{describe_error(error)}"
            ) from error
        ids = self.tokenizer.encode_template(text.partition(_PLACEHOLDER)[2])
        return next((i for i in ids if i in self.tokenizer.control), None)

    def _refuses_system(self) -> bool:
        """Return whether the format has no system turn; its text then starts the first user turn."""
        try:
            self._render([{"role": "system", "content": "x"}, _USER], (), header=True)
        except ModelError:
            return True
        return False

    def _all_stop_ids(self) -> frozenset[int]:
        if self._harmony is not None:
            return self._harmony.stop_ids | self._extra_stop_ids
        ends = {self._close, *self._renderer.get_stop_token_ids()}
        if self._template:
            ends.add(self._writer.eos_token_id)
        stop_ids = frozenset(i for i in ends if i is not None) | self._extra_stop_ids
        if not stop_ids:
            raise CheckpointError(
                f"no token ends the turn of the model in {self._writer.name_or_path}; expected an eos_token "
                "or an end of turn in its chat template"
            )
        return stop_ids

    @functools.cached_property
    def _end_of_turn(self) -> int:
        """Return the id that ends an answer."""
        return self._last_stop([_USER, {"role": "assistant", "content": "x"}, _USER])

    @functools.cached_property
    def _end_of_call(self) -> int:
        """Return the id that ends a function call."""
        calls = [_probe_call("probe", "x", "call00000")]
        return self._last_stop([_USER, {"role": "assistant", "content": "", "tool_calls": calls}, _RESULT])

    def _last_stop(self, messages: Sequence[Message]) -> int:
        ids = self._render(messages, (PROBE_TOOL,), header=False)
        return next((i for i in reversed(ids) if i in self.stop_ids), self._close or min(self.stop_ids))

    def _thinking_markers(self) -> tuple[int, int] | None:
        for start, end in _MARKERS:
            ids = self.tokenizer.id_of(start), self.tokenizer.id_of(end)
            if ids[0] is not None and ids[1] is not None:
                return ids[0], ids[1]
        return None

    @functools.cached_property
    def _opens_thinking(self) -> bool:
        """Return whether the header of the model's turn opens the thinking."""
        return self._opened(self._render([_USER], (), header=True))

    def _opened(self, prompt: list[int]) -> bool:
        if self._markers is None:
            return False
        for i in reversed(prompt):
            if i in self._markers:
                return i == self._markers[0]
        return False

    def _empty_thinking(self) -> list[int]:
        """Return ids that close the thinking before a response, unless the family's format does so."""
        if self._markers is None or self._harmony is not None or not self._template:
            return []
        header = self._render([_USER], (), header=True)
        writer = TemplateTokenizer(self._published, self.tokenizer, thinking=True)
        if writer.apply_chat_template([_USER], add_generation_prompt=True) != header:
            return []
        start, end = self._markers
        gap = self.tokenizer.encode("\n\n")
        return [*([] if self._opened(header) else [start]), *gap, end, *gap]

    @functools.cached_property
    def _style(self) -> CallStyle | None:
        """Return the style of the family's function calls; None if its format has no readable calls."""
        try:
            part = self._call_part(NativeCall(name="probe", arguments={"where": "x"}))
        except ModelError:
            return None
        return call_style(self.tokenizer.decode(part))

    def _require_calls(self) -> None:
        if self._template and self._harmony is None and self._style is None:
            raise ModelError(
                f"the chat template in {self._writer.name_or_path} has no function calls that can be read: "
                "use agent.tool_format 'xml'"
            )

    def _call_part(self, call: NativeCall) -> list[int]:
        """Return the ids of a function call in the family's format, without the end of the turn."""
        arguments = json.loads(arguments_json(call))
        function = {"name": call.name, "arguments": arguments}
        calls = [{"id": "call00000", "type": "function", "function": function}]
        answer = {"role": "assistant", "content": "", "tool_calls": calls}
        ids = self._render([_USER, answer], (PROBE_TOOL,), header=False)
        header = self._render([_USER], (PROBE_TOOL,), header=True)
        tags = [i for tag in _CALL_TAGS if (i := self.tokenizer.id_of(tag)) is not None and i in ids]
        if tags:
            ids = ids[len(ids) - 1 - ids[::-1].index(tags[0]) :]
        else:
            pairs = enumerate(zip(ids, header, strict=False))
            ids = ids[next((position for position, (ours, theirs) in pairs if ours != theirs), len(header)) :]
        end = next((position for position, i in enumerate(ids) if i in self.stop_ids), len(ids))
        return ids[:end]

    def _read_calls(
        self, reply: Reply, ids: Sequence[int], prompt: list[int], tools: Sequence[ToolDeclaration]
    ) -> Reply:
        if self._style is not None:
            return _with_calls(reply, *read_calls(reply.content, self._style))
        declared: Any = list(tools)
        parsed = self._renderer.parse_response(list(ids), tools=declared, prompt_ids=prompt)
        calls = [
            NativeCall(
                name=call.name or "",
                arguments=call.arguments or {},
                error="" if call.status == ToolCallParseStatus.OK else f"the call is malformed: {call.raw}",
            )
            for call in parsed.tool_calls
        ]
        return _with_calls(reply, parsed.content, calls)


def _with_calls(reply: Reply, content: str, calls: Sequence[NativeCall]) -> Reply:
    """Return a response with its calls; a malformed one stays in the content as well."""
    if not reply.thinking_closed:
        return reply
    content = reply.content if any(call.error for call in calls) else content
    return replace(reply, content=content, calls=tuple(calls))


def _fold_system(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages with a leading system message merged into the next one."""
    if len(messages) < 2 or messages[0]["role"] != "system":
        return messages
    text = f"{messages[0]['content']}\n\n{messages[1]['content']}"
    return [{**messages[1], "content": text}, *messages[2:]]


def _probe_call(name: str, where: str, identifier: str) -> dict[str, Any]:
    """Return a function call in OpenAI's form, for the template to write."""
    function = {"name": name, "arguments": {"where": where}}
    return {"id": identifier, "type": "function", "function": function}
