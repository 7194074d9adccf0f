"""Forced answers, scored by a real small model in this process."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.errors import ScoreError
from engine.models.builtin.transformer import Transformer
from engine.models.chat.chatml import ChatML
from engine.models.loader import open_model
from engine.verifiers.execution_free import (
    TokenJudge,
    forced_choice,
    judge_all,
    judge_messages,
    probability_of_yes,
)
from engine.verifiers.execution_free.token_judge import ModelScorer
from tests.fakes.bytes_tokenizer import BytesTokenizer
from tests.unit.models.small import model, prompt, tokenizer
from tests.unit.verifiers.builders import make_transcript, make_turn


def reference(net: Transformer, ids: list[int], continuation: list[int]) -> float:
    whole = [*ids, *continuation]
    with torch.no_grad():
        table = torch.log_softmax(net(torch.tensor([whole]), torch.tensor([len(whole)]))[0].double(), -1)
    return sum(float(table[len(ids) + i - 1, token]) for i, token in enumerate(continuation))


@pytest.mark.parametrize("chat", [ChatML(tokenizer()), ChatML(BytesTokenizer())], ids=["bpe", "bytes"])
def test_forced_answers_are_split_where_they_differ(chat: ChatML) -> None:
    choice = forced_choice(chat)
    decode = chat.tokenizer.decode
    assert decode(choice.start).startswith("<judgement>")
    assert choice.yes != choice.no
    assert decode([*choice.start, *choice.yes]) in "<judgement>YES</judgement><|im_end|>"
    assert decode([*choice.start, *choice.no]) in "<judgement>NO</judgement><|im_end|>"
    assert choice.yes[-1] != choice.no[-1] or 1 in (len(choice.yes), len(choice.no))


@pytest.mark.parametrize(
    "continuations", [[[7], [9]], [[7, 8, 9], [7, 8, 11]], [[5], [6, 7, 8]], [[5, 6], [9, 6]]]
)
async def test_continuations_have_the_log_probabilities_of_a_full_forward(
    continuations: list[list[int]],
) -> None:
    net, ids = model(), prompt(40)
    scorer = ModelScorer(net)
    scores = await scorer.logprobs(ids, continuations)
    await scorer.close()
    assert scores == pytest.approx([reference(net, ids, tokens) for tokens in continuations], abs=1e-5)


async def test_a_judge_scores_by_both_answers_of_a_real_model(tmp_path: Path) -> None:
    opened = open_model("fresh:tiny", home=tmp_path)
    scorer = ModelScorer(opened.model)
    judge = TokenJudge(scorer, opened.chat(), max_context=2048)
    transcript = make_transcript(make_turn(1))
    score = await judge.score(transcript)
    await scorer.close()
    chat = opened.chat().without_thinking()
    choice = forced_choice(chat)
    ids = chat.open(judge_messages(transcript))
    net, _ = opened.builtin()
    yes = reference(net, [*ids, *choice.start], list(choice.yes))
    no = reference(net, [*ids, *choice.start], list(choice.no))
    assert (score.yes_logprob, score.no_logprob) == pytest.approx((yes, no), abs=1e-4)
    assert score.p_yes == pytest.approx(math.exp(yes) / (math.exp(yes) + math.exp(no)), rel=1e-4)
    assert score.prompt_tokens == len(ids)
    assert score.shortened == 0


async def test_a_long_transcript_is_shortened_to_the_models_context(tmp_path: Path) -> None:
    opened = open_model("fresh:tiny", home=tmp_path)
    scorer = ModelScorer(opened.model)
    judge = TokenJudge(scorer, opened.chat(), max_context=1024)
    score = await judge.score(make_transcript(*(make_turn(n, thought="why " * 200) for n in range(6))))
    assert score.shortened >= 5
    assert score.prompt_tokens < 1024
    with pytest.raises(ScoreError, match="do not fit"):
        await judge.score(make_transcript(patch="+ a line\n" * 2000))
    await scorer.close()


async def test_a_prompt_that_exceeds_the_memory_loses_only_its_own_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_model("fresh:tiny", home=tmp_path)
    real = opened.model.packed_hidden

    def limited(ids: torch.Tensor, segments: Any) -> torch.Tensor:
        if ids.numel() > 1200:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(ids, segments)

    monkeypatch.setattr(opened.model, "packed_hidden", limited)
    scorer = ModelScorer(opened.model)
    judge = TokenJudge(scorer, opened.chat(), max_context=2048)
    transcripts = {"long": make_transcript(patch="+ a line\n" * 200), "short": make_transcript()}
    results = {result.key: result async for result in judge_all(judge, transcripts.items())}
    await scorer.close()
    assert results["short"].score is not None
    assert (results["long"].score, results["long"].attempts) == (None, 1)
    assert "does not fit into the GPU's memory" in results["long"].error


async def test_closing_a_scorer_waits_only_for_the_pass_in_progress() -> None:
    net, begun, go_on, passes = model(), threading.Event(), threading.Event(), []
    scorer = ModelScorer(net)

    def slow(prompt_ids: Sequence[int], continuations: Sequence[Sequence[int]]) -> list[float]:
        passes.append(len(prompt_ids))
        begun.set()
        go_on.wait()
        return [0.0 for _ in continuations]

    scorer._logprobs = slow  # type: ignore[method-assign]
    waiting = [asyncio.create_task(scorer.logprobs([1] * n, [[7]])) for n in range(1, 9)]
    await asyncio.to_thread(begun.wait)
    for task in waiting:
        task.cancel()
    go_on.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    await scorer.close()
    assert len(passes) == 1


def test_probability_of_yes_by_hand() -> None:
    assert probability_of_yes(-1.0, -1.0) == 0.5
    assert probability_of_yes(math.log(0.3), math.log(0.1)) == pytest.approx(0.75)
    assert probability_of_yes(-1e5, 0.0) == 0.0
    assert probability_of_yes(0.0, -1e5) == 1.0
    assert probability_of_yes(-math.inf, -2.0) == 0.0


@pytest.mark.parametrize("pair", [(math.nan, -1.0), (-1.0, math.nan), (-math.inf, -math.inf), (0.5, -1.0)])
def test_invalid_log_probabilities_give_no_score(pair: tuple[float, float]) -> None:
    with pytest.raises(ScoreError):
        probability_of_yes(*pair)
