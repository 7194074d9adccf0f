"""Policy of a model behind an OpenAI-compatible address."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import structlog
from openai import OpenAIError

from engine.config.policies import EndpointPolicyConfig
from engine.errors import ContextLengthError, EndpointRefusedError, ModelError, RunEndingError
from engine.inference.base import ChatPolicy, ChatRequest, ChatResponse, SamplingParams, Usage
from engine.inference.endpoint.answers import Answer, read_answer, read_usage
from engine.inference.endpoint.check import CHECK_TOKENS, check_call, check_messages, returned_call
from engine.inference.endpoint.client import EndpointClient
from engine.inference.endpoint.failures import Failure, classify
from engine.inference.endpoint.keys import Endpoint
from engine.inference.endpoint.lengths import AnsweredLengths, LengthRefusal, RequestLength
from engine.inference.endpoint.limits import Bill, RateLimits, Spending, Window
from engine.inference.endpoint.messages import (
    configured_sampling,
    estimate_tokens,
    wire_messages,
)
from engine.inference.endpoint.model_names import is_same_model
from engine.inference.endpoint.provider_state import measure_state
from engine.inference.waits import Waits
from engine.models.chat.base import Message, ToolDeclaration
from engine.types import RolloutKey

FIRST_PAUSE_S = 1.0
"""Pause before the first retry, doubled with each one."""
LONGEST_PAUSE_S = 60.0
MAX_FAILED_IN_A_ROW = 20
"""Consecutive failed requests, retries exhausted, after which the run ends."""
_MAX_REFITS = 4
"""Maximum number of lower response limits tried for one request."""
_MAX_STATE_CHARS = 4 << 20
"""Maximum length of the provider state of one conversation."""
_CUT_OFF = frozenset({"length", "max_tokens", "model_length", "model_context_window_exceeded"})
"""Finish reasons of responses that a limit cut off; the last two are Mistral's and Anthropic's."""
_CHECK_KEY = RolloutKey(iteration=0, phase="check", task_id="", index=0)
_MAX_SEED = 2**31 - 1

log = structlog.get_logger("inference")


@dataclass(frozen=True, slots=True)
class _Expected:
    """Estimates of a request, for limits."""

    tokens: int = 0
    """Tokens of the prompt and the response."""
    cost: float = 0.0
    """US dollars."""


class EndpointPolicy(ChatPolicy):
    """Policy of a model behind an OpenAI-compatible address.

    Args:
        config: request parameters and limits.
        endpoint: address and key.
        book: file that stores the money spent over all attempts of a run.
    """

    def __init__(self, config: EndpointPolicyConfig, endpoint: Endpoint, *, book: Path | None = None) -> None:
        self.name = config.model
        self.version = 0
        self.max_context: int | None = None
        self.sends_thinking = bool(config.thinking_field)
        self._config = config
        self._host = httpx2.URL(endpoint.address).netloc.decode()
        self._client = EndpointClient(
            endpoint, timeout_s=config.timeout_s, stall_timeout_s=config.stall_timeout_s
        )
        self._rates = RateLimits(config.requests_per_minute, config.tokens_per_minute)
        self._window = Window()
        self._spending = Spending(config.spend_limit, book)
        self._checking = asyncio.Lock()
        self._checked = False
        self._ended: RunEndingError | None = None
        """Error raised by every further request."""
        self._failed_in_a_row = 0
        self._response_limit: int | None = None
        """Maximum length of a response, tokens, as stated by a refusal."""
        self._lengths = AnsweredLengths()
        self._state_chars: defaultdict[RolloutKey, int] = defaultdict(int)
        """Length of each conversation's provider state."""
        self._waits = Waits()
        self._costs: defaultdict[RolloutKey, float] = defaultdict(float)
        """US dollars of each rollout."""
        self._counts: Counter[str] = Counter()
        """Numbers of requests since ``take_metrics``, by outcome."""
        self._answered = 0
        self._generated = 0
        """Tokens of all responses."""

    @property
    def spent(self) -> float:
        """Return the US dollars spent, as far as usage and prices are known."""
        return self._spending.spent

    async def check(self, tools: Sequence[ToolDeclaration]) -> None:
        """Send a test request with the run's parameters, then send the tool call of its answer back.

        Stores the model's context length if the endpoint reports it.

        Raises:
            RunEndingError: the endpoint does not answer, or the spend limit cannot be enforced.
        """
        async with self._checking:
            if self._ended is not None:
                raise self._ended
            if not self._checked:
                try:
                    await self._check(tools)
                except RunEndingError as error:
                    self._ended = error
                    raise
                self._checked = True

    async def _check(self, tools: Sequence[ToolDeclaration]) -> None:
        try:
            self.max_context = await self._client.context_length(self._config.model)
        except (OpenAIError, httpx2.HTTPError, OSError, ValueError) as error:
            log.info("endpoint_lists_no_models", endpoint=self._host, reason=type(error).__name__)
        messages = check_messages(tools)
        answer = await self._try(messages, tools)
        response = self._response(answer, Usage(), tools)
        if response.stopped:
            check_call(response, tools, endpoint=self._host)
        if response.calls:
            await self._try([*messages, *returned_call(response)], tools)
        elif tools:
            log.warning(
                "endpoint_check_without_call", endpoint=self._host, finish_reason=answer.finish_reason
            )
        if self._config.spend_limit is not None and answer.usage is None:
            raise EndpointRefusedError(
                f"{self._host} reports no usage, so policy.spend_limit cannot be enforced: unset it, "
                "or set policy.stream to false"
            )

    async def _try(self, messages: Sequence[Message], tools: Sequence[ToolDeclaration]) -> Answer:
        """Send a test request. Raises EndpointRefusedError."""
        sampling = replace(configured_sampling(self._config), max_tokens=CHECK_TOKENS)
        body = self._body(messages, tools, sampling, seed=0)
        try:
            answer, _ = await self._answer(body, self._expected(messages, CHECK_TOKENS), _CHECK_KEY)
        except ModelError as error:
            returned = ", which sent the model's own tool call back," if len(messages) > 1 else ""
            raise EndpointRefusedError(
                f"a test request{returned} failed: {error}; what is sent is set by policy.model, "
                "temperature, top_p, reasoning_effort, extra_body, token_limit_name, send_seed, single_call, "
                "thinking_field and agent.tool_format"
            ) from None
        return answer

    async def respond(self, request: ChatRequest) -> ChatResponse:
        """Return the next message.

        Raises:
            ContextLengthError: the conversation is longer than the model's context.
            ModelError: the endpoint did not answer, retries included.
            RunEndingError: no request of this run will be answered, or its spend limit is reached.
        """
        body = self._body(request.messages, request.tools, request.sampling, seed=request.seed)
        expected = self._expected(request.messages, request.sampling.max_tokens)
        answer, usage = await self._answer(body, expected, request.context.key)
        self._measure_state(request.context.key, answer)
        return self._response(answer, usage, request.tools)

    @staticmethod
    def _response(answer: Answer, usage: Usage, tools: Sequence[ToolDeclaration]) -> ChatResponse:
        return ChatResponse(
            content=answer.content,
            thinking=answer.thinking,
            calls=answer.calls if tools else (),
            stopped=answer.finish_reason not in _CUT_OFF,
            usage=usage,
            provider_state=answer.provider_state,
        )

    def _measure_state(self, key: RolloutKey, answer: Answer) -> None:
        if answer.provider_state is None:
            return
        self._state_chars[key] += measure_state(answer.provider_state)
        if self._state_chars[key] > _MAX_STATE_CHARS:
            raise ModelError(
                f"the provider state that {self._host} expects back is longer than {_MAX_STATE_CHARS} "
                "characters in one conversation"
            )

    async def ask(
        self, messages: Sequence[Message], *, max_tokens: int, key: RolloutKey, seed: int = 0, **fields: Any
    ) -> tuple[Answer, Usage]:
        """Return the whole answer to a request with additional fields, e.g. for log-probabilities.

        Args:
            messages: the conversation; no functions are declared.
            max_tokens: maximum length of the response.
            key: rollout to which its cost is charged.
            seed: seed of the response.
            fields: further fields of the request; they replace configured ones.

        Raises:
            ContextLengthError, ModelError, RunEndingError: as ``respond``.
        """
        body = self._body(messages, (), SamplingParams(max_tokens=max_tokens), seed=seed)
        for name in ("stream", "stream_options"):
            body.pop(name, None)
        return await self._answer(body | fields, self._expected(messages, max_tokens), key)

    def release(self, key: RolloutKey) -> None:
        """Forget a rollout's waits, cost and lengths."""
        self._waits.release(key)
        self._costs.pop(key, None)
        self._state_chars.pop(key, None)
        self._lengths.release(key)

    def waited_seconds(self, key: RolloutKey) -> float:
        """Return the time that a rollout waited for rate limits, those of the run and of the endpoint."""
        return self._waits.seconds(key)

    def spent_on(self, key: RolloutKey) -> float | None:
        """Return the US dollars spent on a rollout, lost requests by estimates; None without prices."""
        return self._costs.get(key, 0.0) if self._has_prices else None

    async def take_metrics(self) -> dict[str, float]:
        """Return the numbers of requests answered, repeated and rate-limited since the last call."""
        counts, self._counts = self._counts, Counter()
        return {f"endpoint/{name}": float(counts[name]) for name in ("answered", "repeated", "rate_limited")}

    async def close(self) -> None:
        """Close the connections."""
        log.info("endpoint_closed", endpoint=self._host, answered=self._answered, spent=round(self.spent, 6))
        await self._client.close()

    def _body(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDeclaration],
        sampling: SamplingParams,
        *,
        seed: int,
    ) -> dict[str, Any]:
        """Return the body of a request; unset temperature and top_p are left out."""
        config = self._config
        left_out = config.temperature is None and sampling.temperature == 1.0
        body: dict[str, Any] = {
            "model": config.model,
            "messages": wire_messages(messages, thinking_field=config.thinking_field),
            config.token_limit_name: min(sampling.max_tokens, self._response_limit or sampling.max_tokens),
            "temperature": None if left_out else sampling.temperature,
            "top_p": None if config.top_p is None and sampling.top_p == 1.0 else sampling.top_p,
            "seed": seed & _MAX_SEED if config.send_seed else None,
            "reasoning_effort": config.reasoning_effort or None,
        }
        body |= config.extra_body
        if tools:
            body |= {"tools": list(tools), "tool_choice": config.tool_choice}
            body["parallel_tool_calls"] = False if config.single_call else None
        if config.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return {name: value for name, value in body.items() if value is not None}

    @property
    def _has_prices(self) -> bool:
        return self._config.input_price is not None and self._config.output_price is not None

    def _expected(self, messages: Sequence[Message], max_tokens: int) -> _Expected:
        if not (self._rates.counts_tokens or self._has_prices):
            return _Expected()
        prompt, config = estimate_tokens(messages), self._config
        generated = self._generated // max(self._answered, 1)
        paid = generated if self._answered else max_tokens
        cost = prompt * (config.input_price or 0.0) + paid * (config.output_price or 0.0)
        return _Expected(tokens=prompt + generated, cost=cost / 1e6 if self._has_prices else 0.0)

    async def _answer(
        self, body: dict[str, Any], expected: _Expected, key: RolloutKey
    ) -> tuple[Answer, Usage]:
        """Send a request until it is answered, within the run's limits, with a response limit that fits."""
        refusals: list[LengthRefusal] = []
        before: Failure | None = None
        try:
            for attempt in itertools.count():
                self._waits.begin(key)
                outcome = await self._attempt(body, expected, key)
                if not isinstance(outcome, Failure):
                    self._note_answered(body, key, refusals)
                    return outcome
                if (fitting := _fitting(outcome)) and len(refusals) < _MAX_REFITS:
                    refusals.append(fitting)
                    body = {**body, self._config.token_limit_name: fitting.fitting}
                    continue
                if outcome.overloaded:
                    self._counts["rate_limited"] += 1
                    self._waits.failed(key)
                tried = attempt - len(refusals)
                if not self._is_repeated(outcome, before, body, key, tried):
                    raise self._counted(outcome)
                before = outcome
                self._counts["repeated"] += 1
                reason = str(outcome.error)
                log.warning("endpoint_retry", endpoint=self._host, attempt=tried + 1, reason=reason)
                await asyncio.sleep(_pause_before(tried, outcome))
        finally:
            self._waits.end(key)
        raise AssertionError

    def _is_repeated(
        self, failure: Failure, before: Failure | None, body: Mapping[str, Any], key: RolloutKey, tried: int
    ) -> bool:
        """Return whether a failed request is sent again.

        Args:
            failure: its last failure.
            before: the failure before that; None for the first.
            body: the request.
            key: its rollout.
            tried: number of times it was sent again.

        Raises:
            ContextLengthError: a conversation was refused twice that was answered when shorter.
        """
        if not (failure.is_unexplained and self._lengths.outgrown(key, estimate_tokens(body["messages"]))):
            return failure.retry and tried < self._config.max_retries
        if before is None or not before.is_unexplained:
            return True
        log.warning("endpoint_refusal_for_length", endpoint=self._host, reason=str(failure.error))
        raise ContextLengthError(f"{failure.error}, twice; shorter conversations were answered")

    def _note_answered(
        self, body: Mapping[str, Any], key: RolloutKey, refusals: Sequence[LengthRefusal]
    ) -> None:
        """Count an answered request; keep the limits that led to its answer."""
        self._failed_in_a_row = 0
        self._counts["answered"] += 1
        self._lengths.add(key, estimate_tokens(body["messages"]))
        if not refusals:
            return
        context, response = refusals[-1].context, refusals[-1].response
        log.info(
            "endpoint_response_limit",
            endpoint=self._host,
            fitting=refusals[-1].fitting,
            context=context,
            response=response,
        )
        self.max_context = min(filter(None, (context, self.max_context)), default=None)
        self._response_limit = min(filter(None, (response, self._response_limit)), default=None)

    async def _attempt(
        self, body: dict[str, Any], expected: _Expected, key: RolloutKey
    ) -> tuple[Answer, Usage] | Failure:
        async with self._window.place():
            await self._rates.wait(expected.tokens)
            if self._ended is not None:
                raise self._ended
            self._spending.check()
            self._waits.sent(key)
            sent_at = time.monotonic()
            usage: Usage | None = None
            with self._billed(expected.cost, key) as bill:
                try:
                    received = await self._client.complete(body)
                    usage = self._counted_usage(received, expected.tokens, bill)
                    answer = read_answer(received)
                    if answer.usage is None:
                        bill.cost = 0.0  # an endpoint that reports no usage has no known cost
                except Exception as error:
                    failure = classify(error, endpoint=self._host, request=self._length(body))
                    if usage is None and not failure.is_billed:
                        bill.cost = 0.0
                    if failure.overloaded:
                        self._window.narrow(sent_at=sent_at, pause_s=failure.pause_s or 0.0)
                    return failure
            self._window.widen()
        self._check_model(answer.model)
        return answer, usage or Usage()

    def _length(self, body: Mapping[str, Any]) -> RequestLength:
        prompt = estimate_tokens(body["messages"], body.get("tools", ()))
        return RequestLength(prompt=prompt, response=body[self._config.token_limit_name])

    @contextmanager
    def _billed(self, estimate: float, key: RolloutKey) -> Iterator[Bill]:
        """Count the cost of a request for the run and its rollout."""
        with self._spending.request(estimate) as bill:
            try:
                yield bill
            finally:
                self._costs[key] += bill.cost

    def _counted_usage(self, received: object, estimated: int, bill: Bill) -> Usage | None:
        """Count a response's usage against the limits, even if its message is invalid; return the usage."""
        reported = received.get("usage") if isinstance(received, dict) else None
        if not isinstance(reported, dict):
            return None
        config = self._config
        usage = read_usage(
            reported,
            input_price=config.input_price,
            cached_price=config.cached_price,
            output_price=config.output_price,
        )
        self._answered += 1
        self._generated += usage.generated_tokens
        self._rates.settle(estimated, usage.prompt_tokens + usage.generated_tokens)
        if usage.cost is not None:
            bill.cost = usage.cost
        return usage

    def _counted(self, failure: Failure) -> Exception:
        """Return the error of a request that is given up; end the run where further ones would fail too."""
        error = failure.error
        if isinstance(error, ContextLengthError):
            return error
        self._failed_in_a_row += 1
        if isinstance(error, RunEndingError):
            self._ended = error
        elif self._failed_in_a_row >= MAX_FAILED_IN_A_ROW:
            self._ended = EndpointRefusedError(
                f"{self._failed_in_a_row} requests in a row failed; the last one: {error}"
            )
        return self._ended or error

    def _check_model(self, answered: str) -> None:
        expected = self._config.answers_as or self._config.model
        if not is_same_model(expected, answered):
            self._ended = EndpointRefusedError(
                f"{self._host} answered with model '{answered[:200]}' although '{self._config.model}' was "
                "asked for: set policy.model to it, or policy.answers_as if both are the same model"
            )
            raise self._ended


def _fitting(failure: Failure) -> LengthRefusal | None:
    """Return the failure's length refusal if it has a response limit that fits; else None."""
    return failure.length if failure.length is not None and failure.length.fitting is not None else None


def _pause_before(attempt: int, failure: Failure) -> float:
    """Return the pause before a request is sent again, seconds; random, to spread retries."""
    if failure.pause_s is None:
        return min(FIRST_PAUSE_S * 2.0**attempt, LONGEST_PAUSE_S) * random.uniform(0.5, 1)
    # The window pauses all requests for as long as an overloaded endpoint asks.
    return FIRST_PAUSE_S * random.random() + (0.0 if failure.overloaded else failure.pause_s)
