"""Evaluation of a policy's fix rate on held-out files: the real agent format and tools, files in memory.

An episode counts as solved when the file is byte for byte the original again; no tests are run, so
equivalent fixes do not count. To measure something else per episode: add a field to ``Attempt``.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from engine.agent.token_conversation import TokenConversation
from engine.inference.base import GenerationContext, GenerationRequest, SamplingParams, TokenPolicy
from engine.tools import MemoryFileStore
from engine.tools.parser import parse
from engine.trainer.sft.data import Episode, editor
from engine.types import RolloutKey, Task, TaskAnswer, TaskRow


@dataclass(frozen=True, slots=True)
class Attempt:
    """One rollout on one held-out episode."""

    solved: bool
    finished: bool
    """Whether the attempt ended with ``finish``."""
    malformed: int
    """Number of turns without a valid call."""
    tokens: int
    """Number of sampled tokens."""


async def attempt(
    policy: TokenPolicy,
    episode: Episode,
    *,
    temperature: float,
    seed: int,
    max_context: int,
    max_response: int,
) -> Attempt:
    """Run the policy on an episode until it finishes or runs out of context or turns."""
    store = MemoryFileStore({episode.path: episode.broken.encode()})
    tool = editor(store)
    conversation = TokenConversation(policy.chat, [{"role": "user", "content": episode.statement}])
    key = RolloutKey(iteration=0, phase="eval:sft", task_id=str(seed), index=0)
    context = GenerationContext(key=key, row=_row(episode))
    finished, malformed, tokens = False, 0, 0
    for step in range(len(episode.turns) + 2):
        room = min(max_response, max_context - len(conversation))
        if room < 1:
            break
        generation = await policy.generate(
            GenerationRequest(
                prompt_ids=conversation.prompt_ids,
                sampling=SamplingParams(temperature=temperature, max_tokens=room),
                seed=zlib.crc32(f"{seed}/{step}".encode()),
                stop_ids=policy.chat.stop_ids,
                context=context,
            )
        )
        reply = conversation.append_generation(generation, step=step)
        tokens += len(generation.ids)
        parsed = parse(reply.text, "xml")
        malformed += parsed.call is None
        if not generation.stopped or (parsed.call and parsed.call.name == "finish"):
            finished = generation.stopped
            break
        observation = parsed.error
        if parsed.call and parsed.call.name == "file_editor":
            observation = (await tool.run(parsed.call.arguments)).observation
        answer = [{"role": "user", "content": observation}]
        conversation.append(conversation.continuation(answer), step=step)
    return Attempt(store.files[episode.path] == episode.mended.encode(), finished, malformed, tokens)


async def exact_fix_rate(
    policy: TokenPolicy,
    episodes: Sequence[Episode],
    *,
    temperature: float,
    max_context: int,
    max_response: int,
    seed: int = 0,
) -> dict[str, float]:
    """Run one attempt per episode and return the mean results.

    Returns:
        Means over attempts: ``exact_fix``, ``finished`` (shares), ``malformed`` (turns), ``tokens``.
    """
    attempts = await asyncio.gather(
        *(
            attempt(
                policy,
                episode,
                temperature=temperature,
                seed=seed * 1_000_003 + index,
                max_context=max_context,
                max_response=max_response,
            )
            for index, episode in enumerate(episodes)
        )
    )
    count = max(1, len(attempts))
    return {
        "exact_fix": sum(a.solved for a in attempts) / count,
        "finished": sum(a.finished for a in attempts) / count,
        "malformed": sum(a.malformed for a in attempts) / count,
        "tokens": sum(a.tokens for a in attempts) / count,
    }


def _row(episode: Episode) -> TaskRow:
    task = Task(
        id=f"{episode.body_key:016x}",
        instance_id=episode.path,
        repo="",
        base_commit="",
        problem_statement=episode.statement,
        image="",
    )
    return TaskRow(task=task, answer=TaskAnswer(gold_patch=""), split="heldout")
