"""Judge behind an endpoint: the answer's log-probabilities are read where it says YES or NO.

Endpoints do not force continuations. The place of the answer is found in the response's own tokens (not at a
fixed index), and both words must be among the tokens that the endpoint lists there: a word that is missing
has an unknown probability, not 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from engine.errors import ContextLengthError, ScoreError
from engine.inference.base import SamplingParams
from engine.inference.endpoint.answers import TokenLogprobs
from engine.inference.endpoint.messages import estimate_tokens
from engine.inference.endpoint.policy import EndpointPolicy
from engine.types import RolloutKey
from engine.verifiers.execution_free.answers import Score, probability_of_yes
from engine.verifiers.execution_free.prompts import ANSWER_START, ANSWERS, JudgedPart, judge_messages
from engine.verifiers.execution_free.shortening import shorten
from engine.verifiers.execution_free.transcripts import Transcript

TOP_LOGPROBS = 20
"""Tokens asked for at each place: the most that the interface allows."""
RETRY_TEMPERATURE = 0.5
"""Temperature of attempts after the first, which is greedy: the same response would have the same flaw."""
_KEY = RolloutKey(iteration=0, phase="verifier", task_id="", index=0)
_SHOWN = 200


class EndpointJudge:
    """Judge that asks an endpoint and reads the probabilities of YES and NO in its response.

    Args:
        policy: the endpoint; it must give ``top_logprobs``.
        max_context: maximum length of a prompt and its response, tokens, by an estimate from characters.
        max_response: maximum length of a response, tokens, thinking included.
        part: what the judge reads.
    """

    def __init__(
        self,
        policy: EndpointPolicy,
        *,
        max_context: int,
        max_response: int = 32,
        part: JudgedPart = "trajectory",
    ) -> None:
        self._policy = policy
        self._limit = max_context - max_response
        self._max_response = max_response
        self._part: JudgedPart = part

    async def score(self, transcript: Transcript, *, attempt: int = 0) -> Score:
        """Score one transcript. Raises ScoreError, ModelError, RunEndingError."""
        shortened = shorten(
            transcript,
            limit=self._limit,
            prompt_tokens=lambda shown: estimate_tokens(judge_messages(shown, self._part)),
            text_tokens=lambda text: estimate_tokens([{"content": text}]),
        )
        sampling = SamplingParams(
            temperature=RETRY_TEMPERATURE if attempt else 0.0, max_tokens=self._max_response
        )
        messages = judge_messages(shortened.transcript, self._part)
        try:
            tokens, usage = await self._policy.respond_with_logprobs(
                messages, sampling, seed=attempt, key=_KEY, top=TOP_LOGPROBS
            )
        except ContextLengthError as error:
            raise ScoreError(f"{error}; lower the judge's context", retry=False) from error
        score = read_answer_tokens(tokens)
        return replace(score, prompt_tokens=usage.prompt_tokens, shortened=shortened.pieces, cost=usage.cost)


def read_answer_tokens(tokens: Sequence[TokenLogprobs]) -> Score:
    """Return the score that a response's tokens hold.

    Raises:
        ScoreError: there are no tokens, the response answers neither YES nor NO, or one of the two is not
            among the alternatives at its place.
    """
    if not tokens:
        raise ScoreError("the endpoint gives no log-probabilities (logprobs, top_logprobs)", retry=False)
    token, cut = _answer_place(tokens)
    found = dict.fromkeys(ANSWERS, -math.inf)
    for text, logprob in {token.token: token.logprob, **token.alternatives}.items():
        word = _word(text[cut:]) if text[:cut] == token.token[:cut] else ""
        if word in found:
            found[word] = _log_sum(found[word], logprob)
    yes, no = (found[answer] for answer in ANSWERS)
    for answer, logprob in found.items():
        if logprob == -math.inf:
            raise ScoreError(
                f"{answer} is not among the {len(token.alternatives)} tokens that the endpoint lists where "
                f"the answer begins ({token.token!r}): its probability is unknown"
            )
    return Score(p_yes=probability_of_yes(yes, no), yes_logprob=yes, no_logprob=no, prompt_tokens=0)


def _answer_place(tokens: Sequence[TokenLogprobs]) -> tuple[TokenLogprobs, int]:
    """Return the token with the answer's first letter, and how many of its characters are the tag's."""
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
    """Return the answer that a token begins with, without what closes it; letter case does not matter."""
    return text.strip().partition("<")[0].strip(" \n\t.!\"'`").upper()


def _log_sum(one: float, other: float) -> float:
    high, low = max(one, other), min(one, other)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
