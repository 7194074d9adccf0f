"""Validated parsing of a vLLM server's answers: impossible ones raise ``EngineError("garbage")``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from engine.errors import EngineError
from engine.inference.base import Generation
from engine.inference.vllm.clients.facts import EngineMetrics

_NO_LOGPROB = -9999.0
"""Value that vLLM sends for a log-probability that is missing, infinite or not a number."""
_ROUNDING = 1e-4
"""Positive log-probabilities up to this value are rounding errors."""
_EMPTY_DIGEST = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""SHA-256 of no bytes."""
_SAMPLE = re.compile(r"^vllm:(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


class Answer(BaseModel):
    """Base of a server's answers; unknown fields are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


class VersionAnswer(Answer):
    """Answer of ``/version``."""

    version: str


class Routes(Answer):
    """Answer of ``/openapi.json``."""

    paths: dict[str, Any]


class ServedModel(Answer):
    """One of the models that a server serves."""

    id: str
    max_model_len: int | None = None
    """None for adapters."""


class Models(Answer):
    """Answer of ``/v1/models``."""

    data: list[ServedModel]


class WeightInfo(Answer):
    """Answer of ``/weight_info``."""

    weight_version: str


class WorkerAnswer(Answer):
    """Result of a method of our worker module in one rank."""

    refused: str = ""
    vocabulary: int | None = None


class WorkerAnswers(Answer):
    """Answer of ``/collective_rpc``: one entry per rank."""

    results: list[WorkerAnswer] = Field(min_length=1)


class ResetAnswer(Answer):
    """Answer of ``/reset_prefix_cache``."""

    success: bool


class Checksums(Answer):
    """Answer of ``/weight_checker``."""

    checksums: dict[str, str] = Field(min_length=1)


class TokenLogprob(Answer):
    """A token's log-probability."""

    token_id: int | None = None
    logprob: FiniteFloat

    def value(self) -> float | None:
        """Return the log-probability; None where the server had none."""
        return min(self.logprob, 0.0) if _NO_LOGPROB < self.logprob <= _ROUNDING else None


class TokenLogprobs(Answer):
    """Log-probabilities of a choice's tokens."""

    content: list[TokenLogprob] | None = None


class VersionSpan(Answer):
    """Tokens ``start`` to ``end`` of a response, sampled by weights of one version."""

    version: str
    start: int
    end: int


class Choice(Answer):
    """New tokens of a stream, and its end."""

    token_ids: list[int] | None = None
    logprobs: TokenLogprobs | None = None
    finish_reason: Literal["stop", "length", "abort"] | None = None
    weight_versions: list[VersionSpan] | None = None


class ServerProblem(Answer):
    """Error that a server reports within a stream."""

    message: str = ""
    code: int | None = None


class StreamEvent(Answer):
    """One event of a stream."""

    choices: list[Choice] = Field(default=[], max_length=1)
    error: ServerProblem | None = None


class PromptLogprobs(Answer):
    """Answer to a request for the log-probabilities of its prompt."""

    prompt_logprobs: list[dict[str, TokenLogprob] | None]


_Form = TypeVar("_Form", bound=Answer)


def garbage(message: str, tokens: Generation | None = None) -> EngineError:
    """Return the error for an impossible answer."""
    return EngineError(message, kind="garbage", tokens=tokens)


def read_answer(form: type[_Form], content: bytes) -> _Form:
    """Parse and validate a JSON answer."""
    try:
        return form.model_validate_json(content)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"])) or form.__name__
        raise garbage(f"the vLLM server answered {content[:100]!r}: {where}: {problem['msg']}") from None


def read_prompt_logprobs(answer: PromptLogprobs, ids: Sequence[int]) -> list[float]:
    """Return the log-probability of each id after the first."""
    entries = answer.prompt_logprobs
    if len(entries) != len(ids):
        raise garbage(f"the vLLM server returned {len(entries)} log-probabilities for {len(ids)} tokens")
    logprobs = []
    for token, entry in zip(ids[1:], entries[1:], strict=True):
        scored = (entry or {}).get(str(token))
        logprob = scored.value() if scored is not None else None
        if logprob is None:
            raise garbage(f"the vLLM server returned {entry!r:.200} as log-probability of token {token}")
        logprobs.append(logprob)
    return logprobs


def parse_metrics(text: str) -> EngineMetrics:
    """Return a server's load from its Prometheus metrics; values of its engines are added up."""
    samples: dict[str, list[tuple[str, float]]] = {}
    for name, labels, value in _SAMPLE.findall(text):
        samples.setdefault(name, []).append((labels, _number(value)))

    def total(name: str) -> int:
        values = [value for _, value in samples.get(name, [])]
        if not values or not all(map(math.isfinite, values)):
            raise garbage(f"the vLLM server's metrics have vllm:{name} = {values}")
        return int(sum(values))

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
    )


def check_checksums(checksums: Mapping[str, str]) -> dict[str, str]:
    """Return checksums by tensor; those of empty tensors prove nothing and raise."""
    empty = [name for name, digest in checksums.items() if digest == _EMPTY_DIGEST]
    if empty:
        raise garbage(
            f"{len(empty)} checksums of the vLLM server are of empty tensors, e.g. {empty[0]}: it packed its "
            "weights and dropped the originals; start it with Trainyard's worker module"
        )
    return dict(checksums)


def _cache_tokens(infos: Sequence[tuple[str, float]]) -> int:
    sizes = [int(size) for labels, _ in infos for size in re.findall(r'kv_cache_size_tokens="(\d+)"', labels)]
    if not sizes:
        raise garbage("the vLLM server's metrics lack the capacity of its KV cache")
    return sum(sizes)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
