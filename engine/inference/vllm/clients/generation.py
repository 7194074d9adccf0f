"""One sampling request to a vLLM server: its body, and the validated tokens of its stream."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp

from engine.errors import EngineError
from engine.inference.base import Generation, GenerationRequest
from engine.inference.vllm.clients.responses import Choice, StreamEvent, VersionSpan, garbage, read_answer

_STREAM_TOKENS = 8
"""Tokens per event of a stream: with one each, JSON takes most of the time on both sides."""
_MAX_EVENT_BYTES = 1 << 20
_SEEDS = (1 << 63) - 1
_UNSET_VERSION = "default"
"""Weight version that a server reports before one is set."""
_VERSION = re.compile(r"\d{1,18}", re.ASCII)


def generation_body(request: GenerationRequest, *, request_id: str, model: str, salt: str) -> dict[str, Any]:
    """Return the body of a streaming request for token ids and their log-probabilities."""
    sampling = request.sampling
    body = {
        "request_id": request_id,
        "model": model,
        "token_ids": list(request.prompt_ids),
        "stream": True,
        "sampling_params": {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "max_tokens": sampling.max_tokens,
            "seed": request.seed & _SEEDS,
            "stop_token_ids": sorted(request.stop_ids),
            "ignore_eos": True,  # only stop_ids end a response
            "logprobs": 0,  # of the sampled token alone
            "detokenize": False,
            "stream_interval": _STREAM_TOKENS,
        },
    }
    return body | ({"cache_salt": salt} if salt else {})


async def stream_events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the data of each server-sent event up to ``[DONE]``."""
    buffer = b""
    async for chunk in response.content.iter_any():
        *events, buffer = (buffer + chunk).split(b"\n\n")
        if len(buffer) > _MAX_EVENT_BYTES:
            raise garbage(f"the vLLM server returned an event of more than {_MAX_EVENT_BYTES} bytes")
        for event in events:
            data = event.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            yield data


class GenerationStream:
    """Tokens of one request, assembled from the events of its stream.

    Args:
        version: the weights' version when the request was sent.
        is_stamped: whether a version was set on the server; if it then reports none, it was restarted.
        is_adapter: whether an adapter samples: the server reports the version of the model under it.
        max_tokens: maximum number of tokens.
        stop_ids: ids that end the response.
        vocabulary: number of token ids; None: unknown.
    """

    def __init__(
        self,
        *,
        version: int,
        is_stamped: bool,
        is_adapter: bool,
        max_tokens: int,
        stop_ids: frozenset[int],
        vocabulary: int | None,
    ) -> None:
        self._version = version
        self._is_stamped = is_stamped
        self._is_adapter = is_adapter
        self._max_tokens = max_tokens
        self._stop_ids = stop_ids
        self._vocabulary = vocabulary
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._spans: list[VersionSpan] | None = None
        self.finish_reason: str | None = None
        """``stop``, ``length`` or ``abort`` once the server has ended the stream."""

    def partial(self) -> Generation | None:
        """Return the tokens received so far; None without any."""
        if not self._ids:
            return None
        return self._generation([self._version] * len(self._ids), stopped=False)

    def add(self, data: bytes) -> None:
        """Add one event of the stream."""
        try:
            event = read_answer(StreamEvent, data)
        except EngineError as error:
            error.tokens = self.partial()
            raise
        if event.error is not None:
            raise EngineError(
                f"the vLLM server reported an error while sampling: {event.error.message:.300}",
                kind="refused" if 400 <= (event.error.code or 500) < 500 else "lost",
                tokens=self.partial(),
            )
        for choice in event.choices:
            self._add_tokens(choice)
            if choice.finish_reason is not None:
                self._finish(choice.finish_reason, choice.weight_versions)

    def result(self) -> Generation:
        """Return the whole response, after the server has ended the stream."""
        return self._generation(self._versions(), stopped=self.finish_reason == "stop")

    def _add_tokens(self, choice: Choice) -> None:
        ids = choice.token_ids or []
        entries = (choice.logprobs and choice.logprobs.content) or []
        if self.finish_reason is not None and ids:
            raise self._garbage("tokens after the end")
        if len(entries) != len(ids):
            raise self._garbage(f"{len(ids)} tokens with {len(entries)} log-probabilities")
        for token, entry in zip(ids, entries, strict=True):
            logprob = entry.value()
            if token < 0 or (self._vocabulary is not None and token >= self._vocabulary):
                raise self._garbage(f"token id {token} outside of the vocabulary of {self._vocabulary}")
            if entry.token_id != token:
                raise self._garbage(f"a log-probability of token {entry.token_id} for token {token}")
            if self._ids and self._ids[-1] in self._stop_ids:
                raise self._garbage(f"tokens after stop token {self._ids[-1]}")
            if logprob is None:
                raise self._garbage(f"log-probability {entry.logprob} of token {token}")
            self._ids.append(token)
            self._logprobs.append(logprob)
        if len(self._ids) > self._max_tokens:
            raise self._garbage(f"{len(self._ids)} tokens, {self._max_tokens} were asked for")

    def _finish(self, reason: str, spans: list[VersionSpan] | None) -> None:
        if reason != "abort" and not self._ids:
            raise self._garbage("a response without tokens")
        if reason != "abort" and (self._ids[-1] in self._stop_ids) != (reason == "stop"):
            raise self._garbage(f"finish reason {reason!r} after token {self._ids[-1]}")
        self.finish_reason = reason
        self._spans = spans

    def _versions(self) -> list[int]:
        if self._spans is None or self._is_adapter:
            return [self._version] * len(self._ids)
        versions: list[int] = []
        for span in self._spans:
            is_unset = span.version == _UNSET_VERSION and not self._is_stamped
            if span.start != len(versions) or span.end > len(self._ids):
                raise self._garbage(f"weight versions {self._spans} of {len(self._ids)} tokens")
            if not is_unset and not _VERSION.fullmatch(span.version):
                raise self._garbage(f"weight version {span.version!r}, which is no number")
            version = self._version if is_unset else int(span.version)
            versions += [version] * (span.end - span.start)
        if len(versions) != len(self._ids):
            raise self._garbage(f"weight versions {self._spans} of {len(self._ids)} tokens")
        return versions

    def _generation(self, versions: Sequence[int], *, stopped: bool) -> Generation:
        return Generation(
            ids=tuple(self._ids), logprobs=tuple(self._logprobs), versions=tuple(versions), stopped=stopped
        )

    def _garbage(self, what: str) -> EngineError:
        return garbage(f"the vLLM server returned {what}", self.partial())
