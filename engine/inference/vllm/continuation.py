"""Continuation of a response whose engine failed, from the tokens sampled so far.

Received tokens are kept if they are valid and of the current weights (or mixed versions within a response
are accepted). The rest is sampled with a seed derived from the request's seed and the position. Each token
is then drawn from the policy given those before it, as in an uninterrupted response. Otherwise the whole
request is sent again with its original seed.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from engine.inference.base import Generation, GenerationRequest


class Response:
    """Response assembled from one engine or several.

    Args:
        request: the original request.
    """

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._kept = Generation(ids=(), logprobs=(), versions=(), stopped=False)

    @property
    def num_kept(self) -> int:
        """Return the number of tokens kept from failed engines."""
        return len(self._kept.ids)

    @property
    def tokens(self) -> int:
        """Return the length of the next request's prompt."""
        return len(self._request.prompt_ids) + self.num_kept

    @property
    def room(self) -> int:
        """Return the maximum number of tokens still to be sampled."""
        return self._request.sampling.max_tokens - self.num_kept

    def next_request(self) -> GenerationRequest:
        """Return the request for the missing tokens."""
        if not self.num_kept:
            return self._request
        return replace(
            self._request,
            prompt_ids=[*self._request.prompt_ids, *self._kept.ids],
            sampling=replace(self._request.sampling, max_tokens=self.room),
            seed=_continued_seed(self._request.seed, self.num_kept),
        )

    def keep(self, partial: Generation | None) -> None:
        """Keep the tokens of an interrupted request."""
        if partial is not None:
            self._kept = self._joined(partial)

    def drop_unless(self, version: int) -> None:
        """Drop kept tokens unless all are of ``version``: the response must have a single one."""
        if any(kept != version for kept in self._kept.versions):
            self._kept = Generation(ids=(), logprobs=(), versions=(), stopped=False)

    def finished(self) -> Generation | None:
        """Return the response if the kept tokens complete it (only the stream's end was lost)."""
        if not self._kept.ids:
            return None
        stopped = self._kept.ids[-1] in self._request.stop_ids
        return replace(self._kept, stopped=stopped) if stopped or self.room == 0 else None

    def complete(self, last: Generation) -> Generation:
        """Return the whole response: the kept tokens and an engine's complete answer."""
        return self._joined(last) if self.num_kept else last

    def _joined(self, more: Generation) -> Generation:
        kept = self._kept
        return replace(
            more,
            ids=kept.ids + more.ids,
            logprobs=kept.logprobs + more.logprobs,
            versions=kept.versions + more.versions,
            entropy=(),
        )


def _continued_seed(seed: int, position: int) -> int:
    digest = hashlib.sha256(f"{seed}\x1f{position}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
