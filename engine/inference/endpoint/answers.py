"""Parsing of an endpoint's answers; the type of every value is checked."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.inference.base import Usage
from engine.inference.endpoint.provider_state import read_state
from engine.tools.base import printable
from engine.tools.formats import checked_arguments
from engine.tools.parser import MAX_RESPONSE_CHARS, NativeCall
from engine.tools.schemas import CallError

MAX_CALLS = 64
_MAX_COUNT = 2**31 - 1
THINKING_FIELDS = ("reasoning_content", "reasoning")


class GarbledAnswerError(ValueError):
    """The answer does not follow the chat completions interface."""


class ReportedError(Exception):
    """The endpoint reported an error inside of a successful response.

    Args:
        body: the reported error.
    """

    def __init__(self, body: object) -> None:
        self.body = body
        super().__init__("the endpoint reported an error inside of its answer")


class OversizedAnswerError(ValueError):
    """The answer exceeds a size limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Token of a response, with the most likely tokens at its position."""

    token: str
    logprob: float
    alternatives: Mapping[str, float]
    """Log-probabilities by token; usually includes ``token`` itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A message of an endpoint."""

    model: str
    """Model that answered; empty where the endpoint does not name it."""
    content: str
    thinking: str
    calls: tuple[NativeCall, ...]
    finish_reason: str
    usage: Mapping[str, Any] | None
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Tokens of the response; empty where they were not requested or not returned."""
    prompt_logprobs: tuple[tuple[str, float], ...] = ()
    """Id and log-probability of each token of the prompt after the first, as vLLM returns them on request."""
    provider_state: Mapping[str, Any] | None = None
    """See ``ChatResponse.provider_state``."""


def read_answer(body: object) -> Answer:
    """Read the body of a response.

    Raises:
        GarbledAnswerError: it holds no message.
        ReportedError: it holds an error.
        OversizedAnswerError: its message is too long.
        ProviderStateError: its provider state cannot be kept.
    """
    if not isinstance(body, dict):
        raise GarbledAnswerError(f"the answer is a JSON {type(body).__name__}, not an object")
    if body.get("error"):
        raise ReportedError(body["error"])
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise GarbledAnswerError("the answer has no choices")
    message = choices[0].get("message")
    if not isinstance(message, dict):
        raise GarbledAnswerError("the answer's choice has no message")
    if choices[0].get("error"):
        raise ReportedError(choices[0]["error"])
    content, thinking = read_content(message.get("content"))
    thinking = thinking or next(filter(None, (read_text(message.get(name)) for name in THINKING_FIELDS)), "")
    answer = Answer(
        model=read_text(body.get("model")),
        content=content or read_text(message.get("refusal")),
        thinking=thinking,
        calls=_calls(message.get("tool_calls")),
        finish_reason=read_text(choices[0].get("finish_reason")),
        usage=body["usage"] if isinstance(body.get("usage"), dict) else None,
        logprobs=_logprobs(choices[0].get("logprobs")),
        prompt_logprobs=_prompt_logprobs(body.get("prompt_logprobs")),
        provider_state=read_state(message),
    )
    if len(answer.content) + len(answer.thinking) > MAX_RESPONSE_CHARS:
        raise OversizedAnswerError(f"the answer is longer than {MAX_RESPONSE_CHARS} characters")
    return answer


def read_content(content: object) -> tuple[str, str]:
    """Return the text and the thinking of a message's content: a text, or a list of parts."""
    if not isinstance(content, list):
        return read_text(content), ""
    text, thinking = [], []
    for part in content:
        if not isinstance(part, dict):
            text.append(read_text(part))
        elif part.get("type") == "thinking":
            thinking.append(read_content(part.get("thinking"))[0])
        else:
            text.append(read_text(part.get("text")) or read_text(part.get("refusal")))
    return "".join(text), "".join(thinking)


def _logprobs(logprobs: object) -> tuple[TokenLogprobs, ...]:
    tokens = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(tokens, list):
        return ()
    return tuple(
        TokenLogprobs(
            token=read_text(token.get("token")),
            logprob=_logprob(token),
            alternatives=_alternatives(token.get("top_logprobs")),
        )
        for token in tokens
        if isinstance(token, dict)
    )


def _prompt_logprobs(entries: object) -> tuple[tuple[str, float], ...]:
    if not isinstance(entries, list):
        return ()
    logprobs = []
    for entry in entries[1:]:
        if not isinstance(entry, dict) or len(entry) != 1:
            raise GarbledAnswerError(f"a token of the prompt has the log-probabilities {entry!r:.200}")
        ((token, value),) = entry.items()
        logprobs.append((str(token), _logprob(value if isinstance(value, dict) else {})))
    return tuple(logprobs)


def _alternatives(listed: object) -> dict[str, float]:
    """Return the alternatives at a position; tokens with equal text (e.g. invalid bytes) are summed."""
    alternatives: dict[str, float] = {}
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("token"), str):
            token = read_text(entry["token"])
            alternatives[token] = float(np.logaddexp(alternatives.get(token, -math.inf), _logprob(entry)))
    return alternatives


def _logprob(entry: Mapping[str, Any]) -> float:
    """Return a log-probability. Raises GarbledAnswerError."""
    value = entry.get("logprob")
    with contextlib.suppress(OverflowError):  # of integers beyond the largest float
        if isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value):
            return float(value)
    raise GarbledAnswerError(f"a token's log-probability is {value!r}, not a number")


def _calls(calls: object) -> tuple[NativeCall, ...]:
    return tuple(_call(call) for call in read_list(calls, "tool_calls")[:MAX_CALLS])


def _call(call: object) -> NativeCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return NativeCall(name="", arguments={}, error="the tool call names no function")
    name, arguments = read_text(function["name"]), function.get("arguments") or {}
    try:
        checked_arguments(arguments)
    except CallError as error:
        return NativeCall(name=name, arguments=read_text(arguments), error=str(error))
    return NativeCall(name=name, arguments=arguments)


def read_list(value: object, name: str) -> list[Any]:
    """Return the list in a field ``name``; empty where the field is unset. Raises GarbledAnswerError."""
    if value and not isinstance(value, list):
        raise GarbledAnswerError(f"the answer's {name} is a JSON {type(value).__name__}, not an array")
    return value if isinstance(value, list) else []


def read_text(value: object) -> str:
    """Return a text without invalid characters; empty where the value is no text."""
    return printable(value) if isinstance(value, str) else ""


def read_usage(
    usage: Mapping[str, Any],
    *,
    input_price: float | None,
    cached_price: float | None,
    output_price: float | None,
) -> Usage:
    """Return tokens and cost of a response.

    Args:
        usage: as the endpoint reports it.
        input_price: US dollars per million prompt tokens; None: unknown, and so is the cost.
        cached_price: the same for cached prompt tokens; None: as ``input_price``.
        output_price: the same for response tokens; None: unknown, and so is the cost.
    """
    prompt = _count(usage.get("prompt_tokens"))
    cached = _count(_detail(usage, "prompt_tokens_details", "cached_tokens"))
    cached = min(cached or _count(usage.get("prompt_cache_hit_tokens")), prompt)
    # Some endpoints count thinking in the total only.
    generated = max(_count(usage.get("completion_tokens")), _count(usage.get("total_tokens")) - prompt)
    thinking = _detail(usage, "completion_tokens_details", "reasoning_tokens")
    cost = None
    if input_price is not None and output_price is not None:
        cached_price = input_price if cached_price is None else cached_price
        cost = ((prompt - cached) * input_price + cached * cached_price + generated * output_price) / 1e6
    return Usage(
        prompt_tokens=prompt,
        cached_tokens=cached,
        generated_tokens=generated,
        thinking_tokens=min(_count(thinking), generated) if isinstance(thinking, int) else None,
        cost=cost,
    )


def _detail(usage: Mapping[str, Any], group: str, name: str) -> object:
    details = usage.get(group)
    return details.get(name) if isinstance(details, dict) else None


def _count(value: object) -> int:
    return min(max(int(value), 0), _MAX_COUNT) if isinstance(value, int) else 0


def read_json(data: bytes) -> Any:
    """Parse JSON from an endpoint. Raises GarbledAnswerError."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise GarbledAnswerError(f"the answer is not JSON: {error}") from None
