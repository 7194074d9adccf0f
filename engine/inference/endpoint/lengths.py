"""Recognition of refusals for a request's length, by codes, token counts and wordings.

Providers have no common code for a conversation that is too long. Codes and wordings are data, each with
the endpoints that send it. Counts need neither: a refusal names the prompt's tokens and a lower limit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import permutations

from engine.types import RolloutKey

CODES: Mapping[str, str] = {
    "context_length_exceeded": "OpenAI, Azure, Groq, Cerebras",
    "string_above_max_length": "OpenAI: one message above its limit of characters",
    "exceed_context_size_error": "llama.cpp (ggml-org/llama.cpp#15780)",
    "request_too_large": "Anthropic, HTTP 413 (anthropics/anthropic-sdk-python#938)",
    "tokens_limit_reached": "GitHub Models, HTTP 413",
    "model_max_prompt_tokens_exceeded": "GitHub Copilot",
    "1261": "Zhipu, Z.ai (zeroclaw-labs/zeroclaw#4124)",
}
"""Values of an error's ``code`` or ``type`` → endpoints that send it."""
WORDINGS: Mapping[str, str] = {
    r"maximum context length": "OpenAI, vLLM, SGLang, DeepSeek, Mistral, OpenRouter",
    r"context[ _]length": "SGLang, LM Studio (cline/cline#3664)",
    r"context[ _]window": "OpenAI, MiniMax, llama-cpp-python, Anthropic (anthropics/claude-code#6380)",
    r"context[ _]size": "llama.cpp",
    r"context limit": "Anthropic, prompt and response together (kortix-ai/suna#172)",
    r"max_model_len|maximum model length": "vLLM (langchain-ai/deepagents#468)",
    r"maximum prompt length": "xAI (cline/cline#3120)",
    r"(prompt|input|request) (is )?too (long|large)": "Anthropic, Fireworks, Bedrock",
    r"input token count .{0,40}exceeds": "Gemini (google-gemini/gemini-cli#4231)",
    r"exceeded model token limit": "Moonshot (MoonshotAI/kimi-cli#2011)",
    r"prompt exceeds max length|prompt 超长": "Zhipu (farion1231/cc-switch#6982)",
    r"range of input length": "DashScope (QwenLM/qwen-code#98)",
    r"`inputs`.{0,40}(must have less than|must be <=)": "TGI, Together (huggingface/chat-ui#340)",
    r"input tokens exceed": "OpenAI",
    r"ContextWindowExceededError": "LiteLLM, also with status 500 (OpenHands/OpenHands#6475)",
    r"exceed max message tokens": "Volcengine Ark",
    r"request body too large": "GitHub Models",
    r"reduce the length": "OpenAI, Groq, Cerebras",
    r"too many (input |prompt )?tokens": "Cohere",
}
"""Patterns of messages, in any letter case → endpoints that send them."""
_WORDINGS = re.compile("|".join(f"(?:{pattern})" for pattern in WORDINGS), re.IGNORECASE)
_RATE = re.compile(r"limit:? (?P<limit>\d+), requested:? (?P<requested>\d+)", re.IGNORECASE)
"""Request above a limit of tokens per minute (OpenAI: DrShushen/climb#13): no pause helps. Messages of
other rate limits state the tokens ``Used`` in between."""
_RESPONSE_LIMIT = re.compile(r"max_(completion_|new_|output_)?tokens")
_COUNT = re.compile(r"(?<![\w.-])\d{1,3}(?:,\d{3})+(?![\w-])|(?<![\w.-])\d{2,9}(?![\w-])")
_STATUS = re.compile(r"(?:code|status|HTTP)\W{0,8}[45]\d\d(?!\d)|<[45]\d\d>", re.IGNORECASE)
"""HTTP status within a message, which is no length."""
_MAX_COUNTS = 8
"""Maximum number of compared counts of a message; those of lengths come first."""
_INACCURACY = 3.0
"""Factor by which the estimate of a prompt's tokens may be wrong."""
_MIN_RESPONSE = 16
_MIN_ANSWERED = 2
"""Answered requests of a rollout required before a refusal may be attributed to length."""
_NEAR_LONGEST = 0.75
"""Share of the longest answered request at which a refused one counts as long; estimates are inexact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLength:
    """Length of a request, tokens."""

    prompt: int
    """Estimate."""
    response: int
    """Limit that was sent."""

    def may_be_prompt(self, count: int) -> bool:
        """Return whether a count agrees with the estimated length of the prompt."""
        return self.prompt / _INACCURACY <= count <= self.prompt * _INACCURACY


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRefusal:
    """Refusal of a request for its length."""

    fitting: int | None = None
    """Response limit that fits, lower than the one sent; None where the prompt is too long."""
    context: int | None = None
    """Context length that the refusal names beside the prompt's; None where that is not certain."""
    response: int | None = None
    """Maximum length of any response that the refusal names; None where that is not certain."""


def read_refusal(
    status: int, *, codes: Collection[str], message: str, request: RequestLength
) -> LengthRefusal | None:
    """Return the refusal of a request for its length; None for any other.

    Args:
        status: HTTP status, 400 or higher.
        codes: machine-readable kinds of the error.
        message: its text.
        request: lengths of the refused request.
    """
    if status == 429:
        return _above_rate(message, request)
    fitting = _fitting(message, request) if status in (400, 422, 500) else None
    if fitting is not None:
        return fitting
    is_length = (
        status == 413
        or not CODES.keys().isdisjoint(map(str.lower, codes))
        or (status in (400, 422) and _names_longer_prompt(message, request))
        or _WORDINGS.search(message) is not None
    )
    if not is_length:
        return None
    return LengthRefusal() if status == 413 else LengthRefusal(fitting=_smaller(message, request))


def _smaller(message: str, request: RequestLength) -> int | None:
    """Return a quarter of a response limit that exceeds the prompt, for refusals that name no counts."""
    quarter = request.response // 4
    may_fit = quarter >= _MIN_RESPONSE and request.response >= request.prompt
    return quarter if may_fit and not _counts(message) else None


def _above_rate(message: str, request: RequestLength) -> LengthRefusal | None:
    match = _RATE.search(message)
    if match is None or int(match["requested"]) <= int(match["limit"]):
        return None
    limit, prompt = int(match["limit"]), int(match["requested"]) - request.response
    return _refusal(limit, prompt, request) or LengthRefusal()


def _fitting(message: str, request: RequestLength) -> LengthRefusal | None:
    """Return the refusal of a response limit, with a limit that fits; None for other causes."""
    counts = _counts(message)
    if request.response not in counts and not _RESPONSE_LIMIT.search(message):
        return None
    others = [count for count in counts if count != request.response]
    for total, limit in permutations(others, 2):
        parts = [count for count in others if count not in (total, limit)]
        if parts and request.response + sum(parts) == total:
            return _refusal(limit, sum(parts), request)
    if len(others) == 1:
        return _of_one_count(others[0], is_context=_WORDINGS.search(message) is not None, request=request)
    prompts = [count for count in others if request.may_be_prompt(count)]
    for prompt in sorted(prompts, key=lambda count: abs(math.log(count / max(request.prompt, 1)))):
        limits = [count for count in others if prompt < count < prompt + request.response]
        if limits:
            return _refusal(max(limits), prompt, request)
    return None


def _of_one_count(count: int, *, is_context: bool, request: RequestLength) -> LengthRefusal | None:
    """Return the refusal of a response limit with one other count: a limit, or the prompt's length."""
    if not is_context:
        return LengthRefusal(fitting=count, response=count) if count < request.response else None
    if count >= request.response:
        fitting = count - request.prompt
    elif request.may_be_prompt(count):  # the refused limit is the context length itself
        fitting = request.response - count
    else:
        fitting = count
    return LengthRefusal(fitting=fitting) if _MIN_RESPONSE <= fitting < request.response else None


def _refusal(limit: int, prompt: int, request: RequestLength) -> LengthRefusal | None:
    fitting = limit - prompt
    if not _MIN_RESPONSE <= fitting < request.response:
        return None
    return LengthRefusal(fitting=fitting, context=limit)


def _names_longer_prompt(message: str, request: RequestLength) -> bool:
    """Return whether a message about tokens names the prompt's length and a lower limit."""
    if "token" not in message.lower():
        return False
    counts = [count for count in _counts(message) if count != request.response]
    return any(request.may_be_prompt(count) and min(counts) < count for count in counts)


def _counts(message: str) -> list[int]:
    """Return the distinct integers of a message, in order, without HTTP statuses."""
    numbers = (int(count[0].replace(",", "")) for count in _COUNT.finditer(_STATUS.sub("", message)))
    return list(dict.fromkeys(count for count in numbers if count >= _MIN_RESPONSE))[:_MAX_COUNTS]


class AnsweredLengths:
    """Lengths of the requests that an endpoint answered, in any unit.

    Detects refusals for length that no code, count or wording explains.
    """

    def __init__(self) -> None:
        self._longest = 0
        self._rollouts: dict[RolloutKey, tuple[int, int]] = {}
        """Number of answered requests of each rollout, and the longest."""

    def add(self, key: RolloutKey, length: int) -> None:
        """Record an answered request."""
        count, longest = self._rollouts.get(key, (0, 0))
        self._rollouts[key] = (count + 1, max(longest, length))
        self._longest = max(self._longest, length)

    def outgrown(self, key: RolloutKey, length: int) -> bool:
        """Return whether a request is longer than all answered ones of its rollout, and among the longest."""
        count, longest = self._rollouts.get(key, (0, 0))
        return count >= _MIN_ANSWERED and length > longest and length >= _NEAR_LONGEST * self._longest

    def release(self, key: RolloutKey) -> None:
        """Forget a rollout."""
        self._rollouts.pop(key, None)
