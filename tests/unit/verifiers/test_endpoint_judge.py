"""Scores of endpoints: read from the response's tokens, keyed by trajectory, never 0 by default."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from engine.config.policies import EndpointPolicyConfig
from engine.errors import EndpointRefusedError, ModelError, ScoreError, SpendLimitError
from engine.inference.endpoint import policy as endpoint_policy
from engine.inference.endpoint.answers import TokenLogprobs
from engine.inference.endpoint.keys import Endpoint
from engine.inference.endpoint.policy import EndpointPolicy
from engine.verifiers.execution_free import EndpointJudge, Judgement, Score, Transcript, judge_all
from engine.verifiers.execution_free.endpoint_judge import read_answer_tokens
from tests.fakes.openai_server import USAGE, OpenAIServer, Reply, openai_server
from tests.unit.verifiers.builders import make_transcript, make_turn

YES, NO = math.log(0.6), math.log(0.2)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_policy, "FIRST_PAUSE_S", 0.001)


def tokens(*texts: str, at: int, **alternatives: float) -> list[TokenLogprobs]:
    """Return a response's tokens, with alternatives at one position."""
    return [
        TokenLogprobs(
            token=text,
            logprob=alternatives.get(text, -0.1) if place == at else -0.1,
            alternatives=alternatives if place == at else {text: -0.1},
        )
        for place, text in enumerate(texts)
    ]


def reply(texts: Sequence[str], place: int, alternatives: Mapping[str, float]) -> Reply:
    content = [
        {
            "token": text,
            "logprob": -0.1,
            "top_logprobs": [
                {"token": other, "logprob": value}
                for other, value in (alternatives if index == place else {text: -0.1}).items()
            ],
        }
        for index, text in enumerate(texts)
    ]
    return Reply(content="".join(texts), logprobs={"content": content})


GOOD = reply(["<judg", "ement>", "YES", "</", "judgement>"], 2, {"YES": YES, "NO": NO})


@asynccontextmanager
async def judged_by(
    server: OpenAIServer, *, forced: bool = False, **settings: Any
) -> AsyncIterator[EndpointJudge]:
    config = EndpointPolicyConfig(endpoint=server.url, **{"model": "m", "max_retries": 1, **settings})
    opened = EndpointPolicy(config, Endpoint(address=server.url, key=""))
    try:
        yield EndpointJudge(opened, max_context=8192, forced=forced)
    finally:
        await opened.close()


@pytest.mark.parametrize(
    "found",
    [
        tokens("<judg", "ement>", "YES", "</", "judgement>", at=2, YES=YES, NO=NO),
        tokens("Well", ".", "<judgement", ">YES", "</judgement>", at=3, **{">YES": YES, ">NO": NO}),
        tokens("<judgement>", "\n", " YES", at=2, **{" YES": YES, " NO": NO, "\n": -9.0}),
        tokens("<judgement>", "Yes", at=1, Yes=math.log(0.4), YES=math.log(0.2), No=NO),
        tokens("YES", "<|im_end|>", at=0, YES=YES, NO=NO),
        tokens("<judgement>", "NO", "</judgement>", "<judgement>", "YES", at=4, YES=YES, NO=NO),
    ],
    ids=["split", "merged", "space", "case", "bare", "last"],
)
def test_the_answer_is_read_at_any_token_position(found: list[TokenLogprobs]) -> None:
    assert read_answer_tokens(found).p_yes == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([], "no log-probabilities"),
        (tokens("May", "be", at=0), "no <judgement>"),
        (tokens("<judgement>", at=0), "ends after"),
        (tokens("<judgement>", " \n", at=0), "ends after"),
        (tokens("<judgement>", "YES", at=1, YES=YES, Maybe=-3.0), "NO is not among the 2 tokens"),
        (tokens("<judgement>", "NO", at=1, NO=NO), "YES is not among"),
        (tokens("<judgement>", "MAYBE", at=1, MAYBE=-0.1), "neither of YES, NO"),
        (tokens("<judgement>", "MAYBE", at=1, MAYBE=-0.1, YES=-8.0, NO=-9.0), "neither of YES, NO"),
        (tokens("<judgement>", "</", at=1, YES=-8.0, NO=-9.0), "neither of YES, NO"),
    ],
)
def test_responses_without_a_clear_answer_give_no_score(found: list[TokenLogprobs], message: str) -> None:
    with pytest.raises(ScoreError, match=message):
        read_answer_tokens(found)


async def test_a_request_asks_for_log_probabilities_and_a_greedy_answer() -> None:
    with openai_server([GOOD]) as server:
        async with judged_by(server, stream=True, input_price=1.0, output_price=2.0) as judge:
            score = await judge.score(make_transcript())
    [body] = server.requests
    assert (body["logprobs"], body["top_logprobs"], body["temperature"]) == (True, 20, 0.0)
    assert "stream" not in body
    assert score.p_yes == pytest.approx(0.75)
    assert score.prompt_tokens == 100
    assert score.cost == pytest.approx((100 * 1.0 + 20 * 2.0) / 1e6)


def counting(body: dict[str, Any], _number: int) -> Reply:
    """Answer as an endpoint with tokens of one character and a context of 8,192 tokens."""
    size = sum(len(message["content"]) for message in body["messages"])
    if size > 8192 - body.get("max_tokens", body.get("max_completion_tokens", 0)):
        message = f"This model's maximum context length is 8192 tokens; your prompt has {size}."
        return Reply(status=400, error={"message": message, "code": "context_length_exceeded"})
    return replace(GOOD, usage={**USAGE, "prompt_tokens": size})


async def test_a_prompt_is_shortened_until_the_endpoint_accepts_it() -> None:
    long = make_transcript(*(make_turn(n, thought="why " * 400) for n in range(12)))
    with openai_server(counting) as server:
        async with judged_by(server) as judge:
            score = await judge.score(long)
    assert len(server.requests) > 1
    assert score.shortened > 0
    assert 0 < score.prompt_tokens <= 8160


async def test_a_patch_too_long_for_the_endpoint_is_an_error() -> None:
    with openai_server(counting) as server:
        async with judged_by(server) as judge:
            with pytest.raises(ScoreError, match="context") as caught:
                await judge.score(make_transcript(patch="+ a line\n" * 1000))
    assert not caught.value.retry


async def judge_through(
    server: OpenAIServer, transcripts: Mapping[str, Transcript]
) -> dict[str, Judgement[str]]:
    async with judged_by(server) as judge:
        return {result.key: result async for result in judge_all(judge, transcripts.items(), max_attempts=3)}


async def test_a_failed_score_is_retried_at_another_temperature() -> None:
    with openai_server([Reply(content="Hm", logprobs={"content": []}), Reply(content="Hm"), GOOD]) as server:
        results = await judge_through(server, {"t": make_transcript()})
    assert results["t"].score is None
    assert "no log-probabilities" in results["t"].error
    assert len(server.requests) == 1, "an endpoint without log-probabilities never has any"
    unclear = reply(["Hm", "."], 0, {"Hm": -0.1})
    with openai_server([unclear, GOOD]) as server:
        results = await judge_through(server, {"t": make_transcript()})
    assert results["t"].attempts == 2
    assert results["t"].score is not None
    assert [body["temperature"] for body in server.requests] == [0.0, 0.5]


async def test_a_score_missing_after_all_retries_is_an_error_not_zero() -> None:
    certain = reply(["<judgement>", "YES", "</judgement>"], 1, {"YES": -1e-4, "Yes": -9.2})
    with openai_server([certain]) as server:
        results = await judge_through(server, {"t": make_transcript()})
    assert results["t"].score is None
    assert results["t"].attempts == 3
    assert "NO is not among" in results["t"].error


@pytest.mark.parametrize("value", [None, "-0.1", True, math.nan])
async def test_malformed_log_probabilities_give_no_score(value: object) -> None:
    garbled = [{"token": "YES", "logprob": value, "top_logprobs": []}]
    with openai_server([Reply(content="YES", logprobs={"content": garbled})]) as server:
        results = await judge_through(server, {"t": make_transcript()})
    assert results["t"].score is None
    assert "not a number" in results["t"].error


async def test_a_refusal_by_the_endpoint_ends_judging() -> None:
    refused = Reply(status=401, error={"message": "no"})
    with openai_server([refused]) as server, pytest.raises(EndpointRefusedError):
        await judge_through(server, {name: make_transcript() for name in "abc"})


async def test_scores_are_keyed_by_trajectory_in_any_order_of_arrival() -> None:
    class Slow:
        """A judge that scores by the problem statement and finishes later transcripts first."""

        def __init__(self) -> None:
            self.started = 0
            self.later = asyncio.Event()

        async def score(self, transcript: Transcript, *, attempt: int = 0) -> Score:
            self.started += 1
            if transcript.problem == "0":
                await self.later.wait()
            if transcript.problem == "7":
                self.later.set()
                raise ScoreError(f"unreadable, attempt {attempt}")
            return Score(p_yes=int(transcript.problem) / 10, yes_logprob=-1, no_logprob=-1, prompt_tokens=1)

    transcripts = {f"t{n}": make_transcript(problem=str(n)) for n in range(8)}
    arrived = [item async for item in judge_all(Slow(), transcripts.items(), parallel=2, max_attempts=2)]
    assert arrived[-1].key in ("t0", "t7"), "the first transcript waited for the last one"
    keyed = {result.key: result for result in arrived}
    assert {key: result.score.p_yes for key, result in keyed.items() if result.score} == {
        f"t{n}": n / 10 for n in range(7)
    }
    assert (keyed["t7"].score, keyed["t7"].error, keyed["t7"].attempts) == (None, "unreadable, attempt 1", 2)


async def test_paid_scores_are_yielded_before_a_spend_limit_error() -> None:
    together = asyncio.Barrier(6)

    class Spending:
        async def score(self, transcript: Transcript, *, attempt: int = 0) -> Score:
            await together.wait()
            if transcript.problem == "3":
                raise SpendLimitError(f"spent, attempt {attempt}")
            return Score(p_yes=0.5, yes_logprob=-1, no_logprob=-1, prompt_tokens=1)

    transcripts = {n: make_transcript(problem=str(n)) for n in range(6)}
    judged_keys = []

    async def judge() -> None:
        async for result in judge_all(Spending(), transcripts.items(), parallel=6):
            judged_keys.append(result.key)

    with pytest.raises(SpendLimitError):
        await judge()
    assert sorted(judged_keys) == [0, 1, 2, 4, 5]


def prompt_logprobs(*tokens: tuple[int, float]) -> list[dict[str, Any] | None]:
    """Return a prompt's log-probabilities as vLLM does: None for the first token."""
    return [None, *({str(token): {"logprob": logprob, "rank": 1}} for token, logprob in tokens)]


def forcing(body: dict[str, Any], _number: int) -> Reply:
    """Answer as a vLLM server that splits YES into two tokens."""
    start, end = [(5, -1.0), (6, -0.5)], [(9, -0.01), (10, -3.0)]
    words = {"YES": [(7, math.log(0.8)), (8, math.log(0.75))], "NO": [(11, math.log(0.2))]}
    (word,) = (word for word in words if word in body["messages"][-1]["content"])
    return Reply(content="x", prompt_logprobs=prompt_logprobs(*start, *words[word], *end))


async def test_a_vllm_server_scores_both_answers_as_continuations() -> None:
    with openai_server(forcing) as server:
        async with judged_by(server, forced=True, input_price=1.0, output_price=2.0) as judge:
            score = await judge.score(make_transcript())
    assert score.p_yes == pytest.approx(0.75)
    assert score.yes_logprob == pytest.approx(math.log(0.6))
    assert score.cost == pytest.approx(2 * (100 * 1.0 + 20 * 2.0) / 1e6)
    for body, word in zip(server.requests, ("YES", "NO"), strict=True):
        assert body["messages"][-1] == {"role": "assistant", "content": f"<judgement>{word}</judgement>"}
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
        assert (body["prompt_logprobs"], body["max_tokens"]) == (0, 1)


@pytest.mark.parametrize(
    ("answered", "message"),
    [
        (None, "scores no prompts"),
        (prompt_logprobs((5, -1.0), (6, -1.0)), "returns no log-probabilities"),
        ([None, {"5": {"logprob": -1.0}, "6": {"logprob": -2.0}}], "has the log-probabilities"),
        (prompt_logprobs((5, math.nan)), "not a number"),
    ],
)
async def test_endpoints_without_prompt_log_probabilities_give_no_score(answered: Any, message: str) -> None:
    with openai_server([Reply(content="x", prompt_logprobs=answered)]) as server:
        async with judged_by(server, forced=True) as judge:
            with pytest.raises((ScoreError, ModelError), match=message):
                await judge.score(make_transcript())
