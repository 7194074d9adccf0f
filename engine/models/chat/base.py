"""Interfaces of tokenizers and chat formats; importing them loads no model.

To add a chat format: a class with ``Chat``'s methods, opened in
``engine.models.chat.factory``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.tools.parser import NativeCall

Message = Mapping[str, Any]
"""A message in OpenAI's form: ``role`` and ``content``; of an assistant also ``reasoning_content`` and
``tool_calls``, of a tool ``name`` and ``tool_call_id``."""
ToolDeclaration = Mapping[str, Any]
"""A function's declaration in OpenAI's form: ``{"type": "function", "function": {...}}``."""


class Tokenizer(Protocol):
    """Conversion between token ids and plain text."""

    vocab_size: int

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text; control tokens spelled out in it stay text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens spelled out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A parsed response of the model."""

    text: str
    """The whole response without its stop token, special tokens spelled out."""
    thinking: str
    content: str
    """The part after the thinking; in native format without the calls."""
    calls: tuple[NativeCall, ...] = ()
    """Function calls in the family's own format; empty unless tools were declared."""
    thinking_tokens: int = 0
    thinking_closed: bool = True
    """False if the response ended inside its thinking."""


class Chat(Protocol):
    """Conversations of one model in tokens; sampled ids are never tokenised again."""

    stop_ids: frozenset[int]
    """Ids that end the model's turn."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""

    def open(self, messages: Sequence[Message], tools: Sequence[ToolDeclaration] = ()) -> list[int]:
        """Return the ids of a whole conversation, the header of the model's turn included.

        Raises:
            ModelError: the family cannot express the messages.
        """

    def extend(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[ToolDeclaration] = (),
    ) -> list[int] | None:
        """Return the ids that follow a completion: its missing end of turn, the messages, the next header.

        Args:
            prompt_ids: ids before the completion; only those after the previous turn matter.
            completion_ids: sampled ids.
            messages: new messages, none of them the model's.
            tools: as in ``open``.

        Returns:
            None where this family cannot continue after that completion.
        """

    def parse(
        self,
        completion_ids: Sequence[int],
        prompt_ids: Sequence[int] = (),
        tools: Sequence[ToolDeclaration] = (),
    ) -> Reply:
        """Parse a response; ``prompt_ids`` as in ``extend``. Calls are only read where tools are declared."""

    def reply_ids(self, text: str, calls: Sequence[NativeCall] = ()) -> list[int]:
        """Return the ids a model would have sampled for a response, the end of the turn included.

        A leading ``<think>…</think>`` in ``text`` is the thinking; everything else is plain text.
        """

    def without_thinking(self) -> Chat:
        """Return the same conversations with thinking switched off, as far as the family supports it."""
