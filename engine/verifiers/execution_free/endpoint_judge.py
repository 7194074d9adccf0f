"""Judge that queries an endpoint.

Most endpoints do not force continuations. The place of the answer is then located in the response's tokens
(not at a fixed index), and both words must be among the tokens that the endpoint lists there: a missing word
has an unknown probability, not 0. vLLM servers can score both answers as continuations (``forced``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from engine.errors import ContextLengthError, ScoreError
from engine.inference.endpoint.answers import TokenLogprobs
from engine.inference.endpoint.policy import EndpointPolicy
from engine.models.chat.base import Message
from engine.types import RolloutKey
from engine.verifiers.execution_free.answers import Score, differing, probability_of_yes
from engine.verifiers.execution_free.prompts import (
    ANSWER_END,
    ANSWER_START,
    ANSWERS,
    JudgedPart,
    judge_messages,
)
from engine.verifiers.execution_free.shortening import shorten
from engine.verifiers.execution_free.transcripts import Transcript

TOP_LOGPROBS = 20
"""Tokens asked for at each place: the most that the interface allows."""
RETRY_TEMPERATURE = 0.5
"""Temperature of retries; the first attempt is greedy, and repeating it would repeat its flaw."""
_KEY = RolloutKey(iteration=0, phase="verifier", task_id="", index=0)
_SHOWN = 200
_SMALLER = 0.75
"""Factor by which a prompt is shortened after the endpoint refused its length."""
_MAX_REFUSALS = 3
_ASCII_PER_TOKEN = 4
_OTHER_BYTES_PER_TOKEN = 3
"""Bytes per token of characters beyond ASCII, e.g. of one Chinese character."""


class EndpointJudge:
    """Judge that asks an endpoint for the probabilities of YES and NO.

    Args:
        policy: the endpoint; it must return ``top_logprobs``, or with ``forced`` be a vLLM server.
        max_context: maximum length of a prompt and its response, tokens; estimated from characters. A prompt
            that the endpoint refuses for its length is shortened further.
        max_response: maximum length of a response, tokens, thinking included.
        part: part of a trajectory that the judge reads.
        forced: score both answers as continuations of the prompt, in two requests.
    """

    def __init__(
        self,
        policy: EndpointPolicy,
        *,
        max_context: int,
        max_response: int = 32,
        part: JudgedPart = "trajectory",
        forced: bool = False,
    ) -> None:
        self._policy = policy
        self._limit = max_context - max_response
        self._max_response = max_response
        self._part: JudgedPart = part
        self._forced = forced

    async def score(self, transcript: Transcript, *, attempt: int = 0) -> Score:
        """Score one transcript. Raises ScoreError, ModelError, RunEndingError."""
        limit, refused = self._limit, 0
        while True:
            shortened = shorten(
                transcript,
                limit=limit,
                prompt_tokens=lambda shown: _estimate(judge_messages(shown, self._part)),
                text_tokens=lambda text: _estimate([{"content": text}]),
            )
            messages = judge_messages(shortened.transcript, self._part)
            try:
                score = await (self._force(messages) if self._forced else self._ask(messages, attempt))
            except ContextLengthError as error:
                if refused == _MAX_REFUSALS:
                    raise ScoreError(f"{error}; lower the judge's context", retry=False) from error
                refused += 1
                limit = int(_SMALLER * min(limit, _estimate(messages)))
            else:
                return replace(score, shortened=shortened.pieces)

    async def _ask(self, messages: Sequence[Message], attempt: int) -> Score:
        """Read the probabilities at the response's YES or NO."""
        answer, usage = await self._policy.ask(
            messages,
            max_tokens=self._max_response,
            key=_KEY,
            seed=attempt,
            temperature=RETRY_TEMPERATURE if attempt else 0.0,
            logprobs=True,
            top_logprobs=TOP_LOGPROBS,
        )
        return replace(
            read_answer_tokens(answer.logprobs), prompt_tokens=usage.prompt_tokens, cost=usage.cost
        )

    async def _force(self, messages: Sequence[Message]) -> Score:
        """Compare the log-probabilities of the two answers where their tokens differ."""
        scored, costs, lengths = [], [], []
        for word in ANSWERS:
            reply: Message = {"role": "assistant", "content": f"{ANSWER_START}{word}{ANSWER_END}"}
            answer, usage = await self._policy.ask(
                [*messages, reply],
                max_tokens=1,
                key=_KEY,
                temperature=0.0,
                prompt_logprobs=0,
                add_generation_prompt=False,
                continue_final_message=True,
            )
            if not answer.prompt_logprobs:
                raise ScoreError("the endpoint scores no prompts (prompt_logprobs)", retry=False)
            scored.append(answer.prompt_logprobs)
            costs.append(usage.cost)
            lengths.append(usage.prompt_tokens)
        score = compare_continuations(*scored)
        cost = sum(amount or 0.0 for amount in costs) if None not in costs else None
        return replace(score, prompt_tokens=max(lengths), cost=cost)


def _estimate(messages: Sequence[Message]) -> int:
    """Return a rough number of tokens that depends on the text only, so that scores are independent."""
    text = "".join(message.get("content") or "" for message in messages)
    others = sum(not character.isascii() for character in text)
    other_bytes = len(text.encode("utf-8", "replace")) - (len(text) - others)
    return ceil((len(text) - others) / _ASCII_PER_TOKEN + other_bytes / _OTHER_BYTES_PER_TOKEN) + 1


def compare_continuations(yes: Sequence[tuple[str, float]], no: Sequence[tuple[str, float]]) -> Score:
    """Return the score from the tokens of two prompts that end with the answers YES and NO.

    Args:
        yes: id and log-probability of each token of the prompt that ends with YES.
        no: the same for the prompt that ends with NO.

    Raises:
        ScoreError: the prompts do not differ, or a log-probability is not a number.
    """
    start, end = differing([token for token, _ in yes], [token for token, _ in no])
    parts = [[logprob for _, logprob in tokens[start : len(tokens) - end]] for tokens in (yes, no)]
    if not all(parts):
        raise ScoreError("the endpoint returns no log-probabilities of the forced answers", retry=False)
    yes_logprob, no_logprob = map(sum, parts)
    return Score(
        p_yes=probability_of_yes(yes_logprob, no_logprob),
        yes_logprob=yes_logprob,
        no_logprob=no_logprob,
        prompt_tokens=0,
    )


def read_answer_tokens(tokens: Sequence[TokenLogprobs]) -> Score:
    """Return the score from a response's tokens.

    Raises:
        ScoreError: there are no tokens, the response answers neither YES nor NO, or one of the two is not
            among the alternatives at its place.
    """
    if not tokens:
        raise ScoreError("the endpoint gives no log-probabilities (logprobs, top_logprobs)", retry=False)
    token, cut = _answer_place(tokens)
    if _word(token.token[cut:]) not in ANSWERS:
        raise ScoreError(f"the response answers {token.token[cut:]!r}, neither of {', '.join(ANSWERS)}")
    logprobs = dict.fromkeys(ANSWERS, -math.inf)
    for text, logprob in {token.token: token.logprob, **token.alternatives}.items():
        word = _word(text[cut:]) if text[:cut] == token.token[:cut] else ""
        if word in logprobs:
            logprobs[word] = _log_sum(logprobs[word], logprob)
    yes, no = (logprobs[answer] for answer in ANSWERS)
    for answer, logprob in logprobs.items():
        if logprob == -math.inf:
            raise ScoreError(
                f"{answer} is not among the {len(token.alternatives)} tokens that the endpoint lists where "
                f"the answer begins ({token.token!r}): its probability is unknown"
            )
    return Score(p_yes=probability_of_yes(yes, no), yes_logprob=yes, no_logprob=no, prompt_tokens=0)


def _answer_place(tokens: Sequence[TokenLogprobs]) -> tuple[TokenLogprobs, int]:
    """Return the token with the answer's first letter, and the number of its characters in the tag."""
    text = "".join(token.token for token in tokens)
    start = text.rfind(ANSWER_START)
    if start < 0 and _word(text) not in ANSWERS:
        raise ScoreError(f"the response has no {ANSWER_START}: {text[:_SHOWN]!r}")
    end = 0 if start < 0 else start + len(ANSWER_START)
    place = 0
    for token in tokens:
        beyond = token.token[max(end - place, 0) :]
        if place + len(token.token) > end and beyond.strip():
            return token, max(end - place, 0)
        place += len(token.token)
    raise ScoreError(f"the response ends after {ANSWER_START}: {text[-_SHOWN:]!r}")


def _word(text: str) -> str:
    """Return the answer at the start of a token, in upper case and without closing characters."""
    return text.strip().partition("<")[0].strip(" \n\t.!\"'`").upper()


def _log_sum(one: float, other: float) -> float:
    high, low = max(one, other), min(one, other)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
