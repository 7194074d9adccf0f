"""Checked parsing of what a vLLM server returns: impossible answers raise ``EngineError("garbage")``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import EngineError
from engine.inference.base import Generation
from engine.inference.vllm.facts import EngineMetrics

_NO_LOGPROB = -9999.0
"""Value that vLLM sends for a log-probability that is missing, infinite or not a number."""
_ROUNDING = 1e-4
_EMPTY_DIGEST = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_SAMPLE = re.compile(r"^vllm:(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


def garbage(message: str, tokens: Generation | None = None) -> EngineError:
    """Return the error of an answer that is impossible."""
    return EngineError(message, kind="garbage", tokens=tokens)


def parse_prompt_logprobs(content: Any, ids: Sequence[int]) -> list[float]:
    """Return the log-probability of each id after the first from a response of ``prompt_logprobs``."""
    entries = content.get("prompt_logprobs") if isinstance(content, dict) else None
    if not isinstance(entries, list) or len(entries) != len(ids):
        raise garbage(f"the vLLM server returned no log-probabilities of a prompt of {len(ids)} tokens")
    logprobs = []
    for token, entry in zip(ids[1:], entries[1:], strict=True):
        logprob = read_logprob((entry or {}).get(str(token), {}))
        if logprob is None:
            raise garbage(f"the vLLM server returned {entry!r:.200} as log-probability of token {token}")
        logprobs.append(logprob)
    return logprobs


def parse_metrics(text: str) -> EngineMetrics:
    """Return a server's load from its Prometheus metrics; engines of one server are added up."""
    samples: dict[str, list[tuple[str, float]]] = {}
    for name, labels, value in _SAMPLE.findall(text):
        samples.setdefault(name, []).append((labels, float(value)))

    def total(name: str) -> int:
        if name not in samples:
            raise garbage(f"the vLLM server's metrics lack vllm:{name}")
        return int(sum(value for _, value in samples[name]))

    uses = [value for _, value in samples.get("kv_cache_usage_perc", [])]
    if not uses or not all(0 <= use <= 1 for use in uses):
        raise garbage(f"the vLLM server's metrics have a KV cache use of {uses}")
    return EngineMetrics(
        running=total("num_requests_running"),
        waiting=total("num_requests_waiting"),
        kv_use=sum(uses) / len(uses),
        cache_tokens=_cache_tokens(samples.get("cache_config_info", [])),
        generated_tokens=total("generation_tokens_total"),
        prompt_tokens=total("prompt_tokens_total"),
        prefix_queries=total("prefix_cache_queries_total"),
        prefix_hits=total("prefix_cache_hits_total"),
        preemptions=total("num_preemptions_total"),
    )


def check_checksums(checksums: Any) -> dict[str, str]:
    """Return checksums by tensor if they prove anything: none may be of an empty tensor."""
    if not isinstance(checksums, dict) or not checksums:
        raise garbage("the vLLM server returned no checksums")
    empty = [name for name, digest in checksums.items() if digest == _EMPTY_DIGEST]
    if empty:
        raise garbage(
            f"{len(empty)} checksums of the vLLM server are of empty tensors, e.g. {empty[0]}: it packed its "
            "weights and dropped the originals; start it with Trainyard's worker module"
        )
    return checksums


def _cache_tokens(infos: Sequence[tuple[str, float]]) -> int:
    found = [int(size) for labels, _ in infos for size in re.findall(r'kv_cache_size_tokens="(\d+)"', labels)]
    if not found:
        raise garbage("the vLLM server's metrics lack the capacity of its KV cache")
    return sum(found)


def is_id(token: Any, vocabulary: int | None) -> bool:
    """Return whether a token id is within the vocabulary, as far as its size is known."""
    return type(token) is int and token >= 0 and (vocabulary is None or token < vocabulary)


def read_logprob(entry: Mapping[str, Any]) -> float | None:
    """Return the entry's log-probability; None where it is not one."""
    value = entry.get("logprob")
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return min(float(value), 0.0) if _NO_LOGPROB < value <= _ROUNDING else None
