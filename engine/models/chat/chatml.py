"""ChatML for built-in tokenizers, with or without a model.

Turns are Qwen3's, built from four marker ids. Only new text is encoded, so every prompt is an exact prefix of
the next and costs as much as its new turn. Functions are declared in the system turn, called between
``<tool_call>`` tags and answered in user turns, as in Qwen3.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from engine.models.chat.base import Message, Reply, Tokenizer, ToolDeclaration
from engine.models.chat.thinking import read_thinking, split_thinking
from engine.tools.parser import NativeCall, read_native
from engine.tools.rendering import render_native

_FORMAT = """\
Write a tool call as one JSON object between tool_call tags:

<tool_call>
{"name": "tool_name", "arguments": {"first_name": "value", "second_name": 3}}
</tool_call>"""


class ChatMLTokenizer(Tokenizer, Protocol):
    """Tokenizer with ChatML's turn markers and the thinking markers."""

    im_start: int
    im_end: int
    """End of a turn: generation stops there."""
    think_start: int
    think_end: int


class ChatML:
    """Conversations in ChatML (``engine.models.chat.base.Chat``).

    Args:
        tokenizer: has ids for the markers.
        thinking: False puts an empty thinking block before every response, as Qwen3 does.
    """

    def __init__(self, tokenizer: ChatMLTokenizer, *, thinking: bool = True) -> None:
        self.tokenizer = tokenizer
        self.stop_ids = frozenset({tokenizer.im_end})
        gap = tokenizer.encode("\n\n")
        skipped = [] if thinking else [tokenizer.think_start, *gap, tokenizer.think_end, *gap]
        self._newline = tokenizer.encode("\n")
        self._header = [tokenizer.im_start, *tokenizer.encode("assistant\n"), *skipped]

    def open(self, messages: Sequence[Message], tools: Sequence[ToolDeclaration] = ()) -> list[int]:
        """Return the ids of a whole conversation, the header of the model's turn included."""
        ids: list[int] = []
        for message in _declared(messages, tools) if tools else messages:
            ids += self._turn(message)
        return [*ids, *self._header]

    def extend(
        self,
        prompt_ids: Sequence[int],  # noqa: ARG002 - other families use it
        completion_ids: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[ToolDeclaration] = (),  # noqa: ARG002 - other families use it
    ) -> list[int] | None:
        """Return the ids that follow a completion; never None."""
        closed = bool(completion_ids) and completion_ids[-1] in self.stop_ids
        ids = [] if closed else [self.tokenizer.im_end]
        ids += self._newline
        for message in messages:
            ids += self._turn(message)
        return [*ids, *self._header]

    def parse(
        self,
        completion_ids: Sequence[int],
        prompt_ids: Sequence[int] = (),  # noqa: ARG002 - other families use it
        tools: Sequence[ToolDeclaration] = (),
    ) -> Reply:
        """Parse a response; thinking is the text between the marker ids."""
        ids = list(completion_ids)
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        markers = (self.tokenizer.think_start, self.tokenizer.think_end)
        reply = read_thinking(self.tokenizer, ids, markers, opened=False)
        if not tools:
            return reply
        content, calls = read_native(reply.content)
        return replace(reply, content=content, calls=calls)

    def reply_ids(self, text: str, calls: Sequence[NativeCall] = ()) -> list[int]:
        """Return the ids of a response, the end of the turn included."""
        tokenizer = self.tokenizer
        text += "\n".join(render_native(call.name, call.arguments) for call in calls)
        thinking, rest, closed = split_thinking(text)
        ids: list[int] = []
        if thinking is not None:
            ids += [tokenizer.think_start, *tokenizer.encode(thinking)]
            ids += [tokenizer.think_end] if closed else []
        return [*ids, *tokenizer.encode(rest), tokenizer.im_end]

    def without_thinking(self) -> ChatML:
        """Return the same conversations with an empty thinking block before every response."""
        return ChatML(self.tokenizer, thinking=False)

    def _turn(self, message: Message) -> list[int]:
        tokenizer = self.tokenizer
        role, text = message["role"], message["content"]
        if role == "tool":
            role, text = "user", f"<tool_response>\n{text}\n</tool_response>"
        for call in message.get("tool_calls", ()):
            function = call["function"]
            text += f"\n{render_native(function['name'], function['arguments'])}"
        body = tokenizer.encode(f"{role}\n{text}")
        return [tokenizer.im_start, *body, tokenizer.im_end, *self._newline]


def _declared(messages: Sequence[Message], tools: Sequence[ToolDeclaration]) -> list[Message]:
    """Return the messages with the functions declared in the system message."""
    rows = "\n".join(json.dumps(tool) for tool in tools)
    texts = [str(message["content"]) for message in messages if message["role"] == "system"]
    texts += [f"The tools, as JSON schemas:\n\n<tools>\n{rows}\n</tools>", _FORMAT]
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]
