"""Models that write and judge parts of tasks; their answers are kept under ``home/model-answers``.

A curation that was stopped or killed asks nothing twice: a question is the model's settings and weights, the
prompt, the limit of the answer and the seed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from engine.config.curation import AnswerLimits
from engine.config.policies import OptionalPolicyConfig
from engine.errors import ContextLengthError, ModelError
from engine.files import atomic_write
from engine.redaction import redact
from engine.tools import cap_characters, printable

Prompt = Sequence[Mapping[str, str]]
"""Messages in OpenAI's form: ``role`` and ``content``."""
MAX_ANSWER_CHARS = 40_000
"""Part of an answer that is read."""
_BYTES_PER_TOKEN = 3
"""Fewer than in most texts and code (about 4): estimated lengths tend to be too high."""
# Both fences begin a line: a search in hostile text stays linear.
_CODE = re.compile(r"^```(?:python|py)?[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_SMALLER, _MAX_REFUSALS = 0.75, 3
"""Factor by which a prompt is shortened after a refusal of its length, and how often."""
_UNSENT = frozenset(
    {
        "requests_per_minute", "tokens_per_minute", "timeout_s", "stall_timeout_s", "stream", "max_retries",
        "input_price", "cached_price", "output_price", "spend_limit", "max_batch", "vllm",
    }
)  # fmt: skip
"""Settings of policies on which answers do not depend."""


class Answer(BaseModel):
    """Answer of a model."""

    model_config = ConfigDict(frozen=True)
    text: str
    """Without thinking."""
    stopped: bool = True
    """False when it was cut off at the limit of its length."""


class ChatModel(Protocol):
    """A model that answers messages."""

    name: str

    @property
    def spent(self) -> float:
        """Return the US dollars spent by all attempts of the run, as far as usage and prices are known."""

    async def answer(self, prompt: Prompt, *, max_tokens: int, seed: int) -> Answer:
        """Return the answer.

        Raises:
            ContextLengthError: the prompt does not fit.
            ModelError: there is no answer, retries included.
            RunEndingError: no question will be answered, or the spend limit is reached.
        """


class NoAnswerError(Exception):
    """A question has no usable answer; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """Model whose answers are kept.

    Args:
        model: answers what is not kept.
        config: its settings.
        limits: limits of prompts and answers.
        home: the data folder.
        weights: identity of the weights behind a checkpoint's name; empty for other models.
    """

    model: ChatModel
    config: OptionalPolicyConfig
    limits: AnswerLimits
    home: Path
    weights: str = ""

    @property
    def name(self) -> str:
        """Return the model's name."""
        return self.model.name

    def has_answer(self, prompt: Callable[[int], Prompt], *, seed: int) -> bool:
        """Return whether the answer to a prompt, as ``ask`` takes it, is kept."""
        return self._path(prompt(self._prompt_bytes), seed).exists()

    async def ask(self, prompt: Callable[[int], Prompt], *, seed: int) -> str:
        """Return the kept or new answer to a prompt.

        Args:
            prompt: returns the prompt with about this number of bytes at most.
            seed: seed of the answer.

        Raises:
            NoAnswerError: the model did not answer, or its answer was cut off.
            RunEndingError: no question will be answered, or the spend limit is reached.
        """
        size = self._prompt_bytes
        for refusals in range(_MAX_REFUSALS + 1):
            try:
                answer = await self._answer(prompt(size), seed)
            except ContextLengthError as error:
                if refusals == _MAX_REFUSALS:
                    raise NoAnswerError(f"no answer: {error}; lower writing.max_context") from error
                size = int(_SMALLER * size)
            except TimeoutError:
                raise NoAnswerError(f"no answer within {self.limits.timeout_s:g} s") from None
            except ModelError as error:
                raise NoAnswerError(f"no answer: {error}") from error
            else:
                break
        if not answer.stopped:
            raise NoAnswerError(f"the answer was cut off at {self.limits.max_response} tokens")
        if len(answer.text) > MAX_ANSWER_CHARS:
            raise NoAnswerError(f"the answer is longer than {MAX_ANSWER_CHARS} characters")
        return answer.text

    async def _answer(self, prompt: Prompt, seed: int) -> Answer:
        path = self._path(prompt, seed)
        try:
            return Answer.model_validate_json(path.read_text())
        except (OSError, ValidationError):
            pass  # not asked yet, or not readable
        async with asyncio.timeout(self.limits.timeout_s):
            given = await self.model.answer(prompt, max_tokens=self.limits.max_response, seed=seed)
        text = redact(printable(given.text[: MAX_ANSWER_CHARS + 1]))
        answer = Answer(text=text, stopped=given.stopped)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_write(path, answer.model_dump_json(), mode=0o600)
        return answer

    @property
    def _prompt_bytes(self) -> int:
        return _BYTES_PER_TOKEN * (self.limits.max_context - self.limits.max_response)

    def _path(self, prompt: Prompt, seed: int) -> Path:
        settings = self.config.model_dump(mode="json", exclude=set(_UNSENT))
        question = [settings, self.weights, list(prompt), self.limits.max_response, seed]
        digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
        return self.home / "model-answers" / digest[:2] / f"{digest}.json"


def find_code(answer: str, *, max_chars: int) -> str:
    """Return the first block of Python in an answer. Raises NoAnswerError if it has none, or a longer one."""
    block = _CODE.search(answer)
    if block is None:
        raise NoAnswerError("there is no block ```python … ```")
    if len(block[1]) > max_chars:
        raise NoAnswerError(f"{len(block[1])} characters: expected at most {max_chars}")
    return block[1]


def cap_bytes(text: str, limit: float) -> str:
    """Keep about ``limit`` bytes of a text, head and tail."""
    size = len(text.encode("utf-8", "replace"))
    return cap_characters(text, int(limit) * len(text) // size)[0] if size > limit else text
