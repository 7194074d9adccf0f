"""Plain text in a published tokenizer: no observation can forge a control token.

``transformers`` encodes every spelled-out control token as its id, even in the output of a program. External
text is therefore protected first: a mark inside each such spelling, at which the text is split for encoding.
The mark itself is never encoded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import CheckpointError

MARK = "\ufdd0"
"""A noncharacter of Unicode; external text that contains it gets U+FFFD instead."""
_MARKUP = re.compile(
    r"</?(?:think|tool_call|tool_response|tool_calls|arg_key|arg_value)>|\[/?THINK\]|<\|?channel\|?>"
)
"""Markers of thinking and of calls, which are ordinary tokens in some tokenizers."""


class PublishedTokenizer:
    """Plain text in a published tokenizer (``engine.models.chat.base.Tokenizer``).

    Args:
        tokenizer: ``transformers``' fast tokenizer.

    Raises:
        CheckpointError: it has no ``tokenizers`` backend.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise CheckpointError(
                f"the tokenizer in {tokenizer.name_or_path} is a {type(tokenizer).__name__} without a fast "
                "implementation; expected a folder with tokenizer.json"
            )
        self._backend = backend
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        template: str | Mapping[str, str] | None = tokenizer.chat_template
        self.template = "".join(template.values()) if isinstance(template, Mapping) else template or ""
        """Chat template; several by purpose are concatenated, and without one it is empty."""
        self.control = {
            number: token.content
            for number, token in backend.get_added_tokens_decoder().items()
            if token.content.strip()
            and (token.special or token.content in self.template or _MARKUP.fullmatch(token.content))
        }
        """Control tokens by id: special ones, and those of the chat template."""
        spellings = sorted(self.control.values(), key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, spellings)) or r"(?!)")

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text; control tokens spelled out in it stay text.

        Lone surrogates become ``?``.
        """
        return self.encode_template(self.protect(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens spelled out."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def id_of(self, token: str) -> int | None:
        """Return a token's id; None where the vocabulary lacks it."""
        token_id: int | None = self._backend.token_to_id(token)
        return token_id

    def protect(self, text: str) -> str:
        """Return external text with a mark inside every spelling of a control token."""
        clean = text.encode("utf-8", "replace").decode().replace(MARK, "\ufffd")
        while (marked := self._spelled.sub(_marked, clean)) != clean:
            clean = marked
        return clean

    def protect_message(self, value: Any) -> Any:
        """Return a message with every text in it protected."""
        if isinstance(value, str):
            return self.protect(value)
        if isinstance(value, Mapping):
            return {self.protect_message(key): self.protect_message(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.protect_message(item) for item in value]
        return value

    def encode_template(self, text: str) -> list[int]:
        """Return the ids of text with control tokens, except spellings that ``protect`` marked."""
        pieces = text.split(MARK) if MARK in text else [text]
        return [i for piece in pieces if piece for i in self._encode(piece)]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids


def _marked(spelling: re.Match[str]) -> str:
    return f"{spelling[0][0]}{MARK}{spelling[0][1:]}"
