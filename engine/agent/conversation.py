"""A conversation as token ids: the sampled ids are the ids trained on.

ChatML. Sampled ids are appended as they are; only new text (an observation and the turn headers
around it) is ever encoded, so nothing is re-tokenised and every prompt is an exact prefix of the
next. Five parallel columns (ids, mask, log-probabilities, policy versions, step indices) become the
trajectory's ``TokenRecord``.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from engine.inference.base import Generation
from engine.models.chat.base import Tokenizer
from engine.tokens import TokenRecord


class Conversation:
    """The token columns of one rollout, all of the same length.

    Args:
        tokenizer: encodes new text; hostile text in it never becomes a turn marker.
        system: text of the system turn; empty leaves the turn out.
        user: text of the first user turn.
    """

    def __init__(self, tokenizer: Tokenizer, *, system: str, user: str) -> None:
        self._tokenizer = tokenizer
        self._ids = array("i")
        self._mask = array("B")
        self._logprobs = array("f")
        self._versions = array("i")
        self._steps = array("i")
        self._append_text(conversation_prompt_ids(tokenizer, system=system, user=user), step=-1)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def prompt_ids(self) -> Sequence[int]:
        """Return the ids to continue from, as a copy."""
        return tuple(self._ids)

    def append_generation(self, generation: Generation, *, step: int) -> None:
        """Append the sampled ids of a step, the stop id included.

        Raises:
            ValueError: the generation's columns differ in length.
        """
        if not len(generation.ids) == len(generation.logprobs) == len(generation.versions):
            raise ValueError("a generation's ids, logprobs and versions differ in length")
        self._ids.extend(generation.ids)
        self._mask.extend([1] * len(generation.ids))
        self._logprobs.extend(generation.logprobs)
        self._versions.extend(generation.versions)
        self._steps.extend([step] * len(generation.ids))

    def append_observation(self, text: str, *, step: int, max_length: int | None = None) -> bool:
        """Close the model's turn, append the observation as a user turn, open the next turn.

        The tokens belong to the step whose action they answer. Where that would leave no room for
        another token below ``max_length``, nothing is appended and the answer is False.
        """
        tokenizer = self._tokenizer
        ids = [] if self._ids[-1] == tokenizer.im_end else [tokenizer.im_end]
        ids += [*_between(tokenizer), *_turn(tokenizer, "user", text), *_model_header(tokenizer)]
        if max_length is not None and len(self._ids) + len(ids) >= max_length:
            return False
        self._append_text(ids, step=step)
        return True

    def record(self) -> TokenRecord:
        """Return the current columns."""
        return TokenRecord(
            ids=self._ids,
            mask=self._mask,
            logprobs=self._logprobs,
            versions=self._versions,
            steps=self._steps,
        )

    def _append_text(self, ids: Sequence[int], *, step: int) -> None:
        self._ids.extend(ids)
        self._mask.extend([0] * len(ids))
        self._logprobs.extend([0.0] * len(ids))
        self._versions.extend([-1] * len(ids))
        self._steps.extend([step] * len(ids))


def conversation_prompt_ids(tokenizer: Tokenizer, *, system: str, user: str) -> list[int]:
    """Return the ids of the initial prompt, up to the start of the model's turn."""
    turns = [("system", system)] if system else []
    ids: list[int] = []
    for role, text in (*turns, ("user", user)):
        ids += [*_turn(tokenizer, role, text)]
    return [*ids, *_model_header(tokenizer)]


def count_thinking_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> int:
    """Count the tokens between ``think_start`` and ``think_end``; an open block counts to its end."""
    count, thinking = 0, False
    for token in ids:
        if token == tokenizer.think_start:
            thinking = True
        elif token == tokenizer.think_end:
            thinking = False
        else:
            count += thinking
    return count


def _between(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode("\n")


def _turn(tokenizer: Tokenizer, role: str, text: str) -> list[int]:
    body = tokenizer.encode(f"{role}\n{text}")
    return [tokenizer.im_start, *body, tokenizer.im_end, *_between(tokenizer)]


def _model_header(tokenizer: Tokenizer) -> list[int]:
    return [tokenizer.im_start, *tokenizer.encode("assistant\n")]
