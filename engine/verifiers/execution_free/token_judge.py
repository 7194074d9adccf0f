"""Judge with access to tokens: both answers are forced and their log-probabilities read by id."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Protocol

import torch

from engine.errors import ScoreError
from engine.models.attention import Segments
from engine.models.base import LanguageModel
from engine.models.chat.base import Chat
from engine.models.logprobs import token_logprobs
from engine.threads import in_thread
from engine.verifiers.execution_free.answers import Score, forced_choice, probability_of_yes
from engine.verifiers.execution_free.prompts import JudgedPart, judge_messages
from engine.verifiers.execution_free.shortening import shorten
from engine.verifiers.execution_free.transcripts import Transcript


class TokenScorer(Protocol):
    """Source of log-probabilities of given tokens."""

    async def logprobs(
        self, prompt_ids: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[float]:
        """Return the log-probability of each continuation of a prompt: the sum over its tokens.

        Raises:
            ModelError, ScoreError: the model did not score them.
        """


class ModelScorer:
    """Scorer with a model in this process, one prompt at a time.

    Args:
        model: any language model; it is not changed.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="judge")
        self._turn = asyncio.Lock()

    async def logprobs(
        self, prompt_ids: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[float]:
        """Return the log-probability of each continuation, at temperature 1.

        Raises:
            ScoreError: the prompt does not fit into the GPU's memory.
        """
        async with self._turn:  # a caller that is cancelled while waiting queues no work for the thread
            try:
                return await in_thread(
                    lambda: self._logprobs(prompt_ids, continuations), executor=self._thread
                )
            except torch.OutOfMemoryError:
                pass  # the exception's frames hold the tensors to free
        torch.cuda.empty_cache()
        raise ScoreError(
            f"a prompt of {len(prompt_ids)} tokens does not fit into the GPU's memory; lower the judge's "
            "context",
            retry=False,
        )

    async def close(self) -> None:
        """Wait for the score in progress and end the thread."""
        await asyncio.to_thread(self._thread.shutdown)

    @torch.no_grad()
    def _logprobs(self, prompt_ids: Sequence[int], continuations: Sequence[Sequence[int]]) -> list[float]:
        """Score in one packed row; continuations that differ only in their last token share a prompt."""
        starts: dict[tuple[int, ...], int] = {}
        ids: list[int] = []
        for continuation in continuations:
            head = tuple(continuation[:-1])
            if head not in starts:
                starts[head] = len(ids) + len(prompt_ids) - 1
                ids += [*prompt_ids, *head]
        lengths = [len(prompt_ids) + len(head) for head in starts]
        columns = [
            starts[tuple(continuation[:-1])] + place
            for continuation in continuations
            for place in range(len(continuation))
        ]
        targets = [token for continuation in continuations for token in continuation]
        head_weights = self._model.head
        device = head_weights.weight.device
        segments = Segments.whole(lengths, device)
        hidden = self._model.packed_hidden(torch.tensor(ids, device=device), segments)
        scored, _ = token_logprobs(
            hidden[columns], head_weights, torch.tensor(targets, device=device), 1.0, entropy=False
        )
        values = iter(scored.double().tolist())
        return [sum(islice(values, len(continuation))) for continuation in continuations]


class TokenJudge:
    """Judge that forces YES and NO behind its prompt and compares their log-probabilities.

    Args:
        scorer: scores tokens.
        chat: the model's conversations; thinking is switched off, so that the answer follows at once.
        max_context: maximum length of a prompt and its answer, tokens.
        part: part of a trajectory that the judge reads.
    """

    def __init__(
        self, scorer: TokenScorer, chat: Chat, *, max_context: int, part: JudgedPart = "trajectory"
    ) -> None:
        self._scorer = scorer
        self._chat = chat.without_thinking()
        self._part: JudgedPart = part
        self._choice = forced_choice(self._chat)
        answer = len(self._choice.start) + max(len(self._choice.yes), len(self._choice.no))
        self._limit = max_context - answer

    async def score(self, transcript: Transcript, *, attempt: int = 0) -> Score:  # noqa: ARG002 - nothing random
        """Score one transcript. Raises ScoreError, ModelError."""
        choice = self._choice
        ids, pieces = await asyncio.to_thread(self._prompt, transcript)
        yes, no = await self._scorer.logprobs([*ids, *choice.start], [choice.yes, choice.no])
        return Score(
            p_yes=probability_of_yes(yes, no),
            yes_logprob=yes,
            no_logprob=no,
            prompt_tokens=len(ids),
            shortened=pieces,
        )

    def _prompt(self, transcript: Transcript) -> tuple[list[int], int]:
        """Return the ids of the prompt and the number of pieces that were cut."""
        shortened = shorten(
            transcript,
            limit=self._limit,
            prompt_tokens=lambda shown: len(self._ids(shown)),
            text_tokens=lambda text: len(self._chat.tokenizer.encode(text)),
        )
        return self._ids(shortened.transcript), shortened.pieces

    def _ids(self, transcript: Transcript) -> list[int]:
        return self._chat.open(judge_messages(transcript, self._part))
