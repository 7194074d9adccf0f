"""Channels of gpt-oss: analysis has the thinking, final the answer, commentary the function calls."""

from __future__ import annotations

import re
from collections.abc import Sequence

from renderers.parsing import harmony_blocks

from engine.errors import CheckpointError
from engine.models.chat.base import Reply
from engine.models.chat.calls import arguments_json
from engine.models.chat.published import PublishedTokenizer
from engine.models.chat.thinking import split_thinking
from engine.tools.parser import NativeCall

_RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")


class Harmony:
    """Parser and writer of gpt-oss responses.

    Raises:
        CheckpointError: the tokenizer lacks one of the format's tokens.
    """

    def __init__(self, tokenizer: PublishedTokenizer) -> None:
        self._tokenizer = tokenizer
        self.start, self.end, self.message = map(self._id, ("<|start|>", "<|end|>", "<|message|>"))
        self.channel, self.call, self.finish = map(self._id, ("<|channel|>", "<|call|>", "<|return|>"))

    def _id(self, token: str) -> int:
        token_id = self._tokenizer.id_of(token)
        if token_id is None:
            raise CheckpointError(f"the tokenizer of a gpt-oss model has no {token} token")
        return token_id

    @property
    def stop_ids(self) -> frozenset[int]:
        """Return the ids that end a turn: after the answer and after a call."""
        return frozenset({self.finish, self.call})

    def read(self, completion_ids: Sequence[int], prompt_ids: Sequence[int]) -> Reply:
        """Parse a response; ``prompt_ids`` end with the header of the model's turn."""
        ids, header = list(completion_ids), list(prompt_ids)
        text = self._tokenizer.decode(ids[:-1] if ids and ids[-1] in self.stop_ids else ids)
        if self.start in header:
            ids = header[len(header) - 1 - header[::-1].index(self.start) :] + ids
        if self.finish in ids:
            ids = ids[: ids.index(self.finish)]
        thinking, content, calls, count, closed = "", "", list[NativeCall](), 0, True
        blocks = harmony_blocks(
            ids, start_id=self.start, message_id=self.message, end_id=self.end, call_id=self.call
        )
        for begin, message, stop, is_closed in blocks:
            head = self._tokenizer.decode(ids[begin:message])
            body = self._tokenizer.decode(ids[message + 1 : stop])
            if recipient := _RECIPIENT.search(head):
                error = "" if is_closed else f"the call of '{recipient[1]}' is cut off"
                calls.append(NativeCall(name=recipient[1], arguments=body, error=error))
            elif "<|channel|>analysis" in head:
                thinking, count, closed = thinking + body, count + stop - message - 1, is_closed
            else:
                content += body
        return Reply(
            text=text,
            thinking=thinking,
            content=content,
            calls=tuple(calls),
            thinking_tokens=count,
            thinking_closed=closed,
        )

    def write(self, text: str, calls: Sequence[NativeCall]) -> list[int]:
        """Return the ids of a response, from its first channel to the id that ends it."""
        encode = self._tokenizer.encode
        thinking, rest, _ = split_thinking(text)
        parts: list[list[int]] = []
        if thinking is not None:
            parts.append([self.channel, *encode("analysis"), self.message, *encode(thinking), self.end])
        if rest.strip() or not calls:
            ending = self.end if calls else self.finish
            parts.append([self.channel, *encode("final"), self.message, *encode(rest), ending])
        for call in calls:
            head = [*encode(f" to=functions.{call.name}"), self.channel, *encode("commentary json")]
            parts.append([*head, self.message, *encode(arguments_json(call)), self.call])
        opening = [self.start, *encode("assistant")]
        return [i for number, part in enumerate(parts) for i in ([*opening, *part] if number else part)]
