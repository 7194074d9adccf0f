"""Token ids of responses that are computed instead of sampled: scripted policies and the warm start."""

from __future__ import annotations

from engine.models.chat.base import Tokenizer
from engine.tools.parser import THINK_END, THINK_START


def response_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids a policy would have sampled for a response, the end of the turn included.

    A leading ``<think>`` and the first ``</think>`` after it become the special ids; everything
    else is plain text.
    """
    head, opened, rest = text.partition(THINK_START) if text.startswith(THINK_START) else ("", "", text)
    ids = tokenizer.encode(head)
    if opened:
        thinking, closed, rest = rest.partition(THINK_END)
        ids += [tokenizer.think_start, *tokenizer.encode(thinking)]
        if closed:
            ids.append(tokenizer.think_end)
    return [*ids, *tokenizer.encode(rest), tokenizer.im_end]
