"""Answers of an endpoint to a list of questions: ``python -m engine.verifiers.questions``.

The workers start this process for the rubrics of scanners. It reads ``Questions`` as JSON from standard
input, where the key does not show, and prints ``Answers`` as JSON. Requests are repeated as those of runs.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from pydantic import BaseModel, ConfigDict

from engine.config.policies import EndpointPolicyConfig
from engine.errors import ModelError, RunEndingError
from engine.inference.endpoint.keys import Endpoint
from engine.inference.endpoint.policy import EndpointPolicy
from engine.models.chat.base import Message
from engine.redaction import add_secrets, log_to, redact
from engine.tools.base import printable
from engine.types import RolloutKey

MOST_ANSWER_CHARS = 10_000
"""Characters of an answer that are returned."""
_KEY = RolloutKey(iteration=0, phase="scan", task_id="", index=0)


class Questions(BaseModel):
    """Questions to one model."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)  # the input has the key

    endpoint: Endpoint
    policy: EndpointPolicyConfig
    max_tokens: int
    """Maximum length of an answer, thinking included."""
    deadline_s: float
    """Time after which missing answers are given up, seconds."""
    questions: list[list[dict[str, str]]]


class Answered(BaseModel):
    """Answer to one question."""

    text: str = ""
    problem: str = ""
    """Reason why there is no answer; empty for an answer."""
    prompt_tokens: int = 0
    generated_tokens: int = 0


class Answers(BaseModel):
    """Answers in the order of the questions."""

    answers: list[Answered]
    ended: str = ""
    """Reason why the endpoint answers no question, such as a wrong key; empty otherwise."""


async def answer(asked: Questions) -> Answers:
    """Ask the questions at once; the policy narrows them where the endpoint asks for fewer."""
    policy = EndpointPolicy(asked.policy, asked.endpoint)
    ended: list[str] = []

    async def one(number: int, messages: list[Message]) -> Answered:
        try:
            async with asyncio.timeout(asked.deadline_s):
                given, usage = await policy.ask(
                    messages, max_tokens=asked.max_tokens, key=_KEY, seed=number, temperature=0.0
                )
        except TimeoutError:
            return Answered(problem=f"no answer within {asked.deadline_s:g} s")
        except RunEndingError as error:
            ended.append(str(error))
            return Answered(problem=str(error))
        except ModelError as error:
            return Answered(problem=str(error))
        return Answered(
            text=redact(printable(given.content[:MOST_ANSWER_CHARS])),
            prompt_tokens=usage.prompt_tokens,
            generated_tokens=usage.generated_tokens,
        )

    try:
        listed: list[Any] = asked.questions
        answers = await asyncio.gather(*(one(number, messages) for number, messages in enumerate(listed)))
    finally:
        await policy.close()
    return Answers(answers=answers, ended=ended[0] if ended else "")


def main() -> None:
    """Read questions, print answers."""
    log_to(sys.stderr)
    asked = Questions.model_validate_json(sys.stdin.read())
    add_secrets(asked.endpoint.key.get_secret_value())
    print(asyncio.run(answer(asked)).model_dump_json())


if __name__ == "__main__":
    main()
