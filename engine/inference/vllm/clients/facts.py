"""Facts and measurements that a vLLM server reports about itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Fixed facts of a running server."""

    vllm: str
    """Version of vLLM."""
    max_context: int
    """Maximum length of a prompt and its response, tokens."""
    cache_tokens: int
    """Capacity of the KV cache, tokens."""
    vocabulary: int | None
    """Number of token ids; None where the server does not report it."""
    features: frozenset[str]
    """Abilities beyond generating: ``weights`` (our worker module is loaded), ``versions`` (tokens carry the
    version of their weights), ``adapters`` (LoRA adapters are loaded at run time)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetrics:
    """A server's load at one moment, and its counters since its start."""

    running: int
    """Requests that are being sampled."""
    waiting: int
    """Requests in the queue."""
    kv_use: float
    """Used share of the KV cache, 0 to 1."""
    cache_tokens: int
    """Capacity of the KV cache, tokens."""
    generated_tokens: int
    prompt_tokens: int
    prefix_queries: int
    """Prompt tokens that were looked up in the prefix cache."""
    prefix_hits: int
    """Prompt tokens that were found in the prefix cache."""
