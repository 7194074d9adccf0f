"""Tokens and log-probabilities of a fake vLLM server without a model."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.inference.base import Generation

VOCABULARY = 1000


def scripted(
    prompt: Sequence[int], seed: int, max_tokens: int, stop_ids: Sequence[int], weights: str
) -> Generation:
    """Return tokens that are a function of the prompt, the seed and the weights alone."""
    digest = hashlib.sha256(json.dumps([list(prompt), seed, weights]).encode()).digest()
    stream = random.Random(digest)
    ids: list[int] = []
    while len(ids) < max_tokens and not (ids and ids[-1] in stop_ids):
        ids.append(stream.randrange(VOCABULARY))
    logprobs = tuple(scripted_logprob(token, weights) for token in ids)
    return Generation(
        ids=tuple(ids), logprobs=logprobs, versions=(0,) * len(ids), stopped=ids[-1] in stop_ids
    )


def scripted_logprob(token: int, weights: str) -> float:
    """Return a log-probability that is a function of the token and the weights alone."""
    return -random.Random(f"{token} {weights}").random() - 1e-3


def adapter_digest(folder: Path) -> str:
    """Return the SHA-256 of an adapter's weights."""
    return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()


def choice(generation: Generation, start: int, end: int) -> dict[str, Any]:
    """Return an event's content: the tokens from ``start`` to ``end``."""
    ids = list(generation.ids[start:end])
    content = [
        {"token_id": token, "logprob": logprob}
        for token, logprob in zip(ids, generation.logprobs[start:end], strict=True)
    ]
    return {"token_ids": ids, "logprobs": {"content": content}}


def stamp(spans: list[dict[str, Any]], start: int, end: int, version: str) -> None:
    """Add the version of tokens to the spans of a response."""
    if spans and spans[-1]["version"] == version:
        spans[-1]["end"] = end
    elif end > start:
        spans.append({"start": start, "end": end, "version": version})
