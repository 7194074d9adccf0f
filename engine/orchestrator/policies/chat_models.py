"""Models that a curation asks: any policy behind ``engine.datasets.cached_model.ChatModel``."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from engine.config.curation import AnswerLimits
from engine.config.policies import NoPolicyConfig, OptionalPolicyConfig, TransformerPolicyConfig
from engine.config.rollout import AgentConfig
from engine.datasets.cached_model import Answer, CachedModel, Prompt
from engine.errors import ConfigError, ContextLengthError, Problem
from engine.inference.base import (
    ChatPolicy,
    ChatRequest,
    GenerationContext,
    GenerationRequest,
    Policy,
    SamplingParams,
    TokenPolicy,
)
from engine.orchestrator.context import RunContext
from engine.orchestrator.policies.policies import open_policy
from engine.orchestrator.setup import policy_sampling
from engine.types import RolloutKey, Task, TaskAnswer, TaskRow

_NO_ROW = TaskRow(
    task=Task(id="", instance_id="", repo="", base_commit="", problem_statement="", image=""),
    answer=TaskAnswer(gold_patch=""),
    split="",
)
"""Models see only their prompt."""


async def open_chat_model(
    settings: OptionalPolicyConfig, limits: AnswerLimits, name: Literal["writer", "judge"], run: RunContext
) -> CachedModel | None:
    """Open a model of a curation; closed with ``run.closing``. None if none is configured.

    Its spending is stored below the run folder, in a folder of its name.

    Raises:
        ConfigError: the endpoint is unknown here, or the context exceeds that of the model.
        CheckpointError: the checkpoint is missing or unusable.
        RunEndingError: the endpoint does not answer.
    """
    if isinstance(settings, NoPolicyConfig):
        return None
    folder = run.run_dir / name
    folder.mkdir(exist_ok=True)
    # The context is compared below, with the name of this setting.
    opening = partial(open_policy, settings, AgentConfig(max_context=64), run.home, run_dir=folder)
    weights = await asyncio.to_thread(_weights, settings, run.home)
    policy = await asyncio.to_thread(opening)
    run.closing.push_async_callback(policy.close)
    await policy.check(())
    if policy.max_context is not None and limits.max_context > policy.max_context:
        wanted = limits.max_context
        message = f"{wanted} tokens exceed the {policy.max_context} of '{policy.name}': lower it"
        raise ConfigError(Problem(message, "curation.writing.max_context"))
    model = PolicyModel(policy, policy_sampling(settings))
    return CachedModel(model=model, config=settings, limits=limits, home=run.home, weights=weights)


def _weights(settings: OptionalPolicyConfig, home: Path) -> str:
    """Return the folder of a checkpoint with the time of its newest file; empty for models without one.

    Raises CheckpointError: the checkpoint is missing.
    """
    if not isinstance(settings, TransformerPolicyConfig):
        return ""
    from engine.models.references import find_model

    folder = find_model(settings.checkpoint, home=home).folder
    if folder is None or not folder.is_dir():
        return ""
    return f"{folder}@{max((path.lstat().st_mtime_ns for path in folder.iterdir()), default=0)}"


class PolicyModel:
    """A policy that answers single prompts.

    Args:
        policy: a chat or token policy.
        sampling: its sampling parameters.
    """

    def __init__(self, policy: Policy, sampling: SamplingParams) -> None:
        self.name = policy.name
        self._policy = policy
        self._sampling = sampling
        self._numbers = itertools.count()

    @property
    def spent(self) -> float:
        """Return the US dollars spent by all attempts of the run; 0 of models without a price."""
        from engine.inference.endpoint.policy import EndpointPolicy

        return self._policy.spent if isinstance(self._policy, EndpointPolicy) else 0.0

    async def answer(self, prompt: Prompt, *, max_tokens: int, seed: int) -> Answer:
        """Return the answer; see ``ChatModel``."""
        key = RolloutKey(iteration=0, phase="curate", task_id="", index=next(self._numbers))
        context = GenerationContext(key=key, row=_NO_ROW)
        sampling = replace(self._sampling, max_tokens=max_tokens)
        try:
            if isinstance(self._policy, TokenPolicy):
                return await self._sample(self._policy, prompt, sampling, seed, context)
            assert isinstance(self._policy, ChatPolicy)
            response = await self._policy.respond(
                ChatRequest(messages=prompt, tools=(), sampling=sampling, seed=seed, context=context)
            )
            return Answer(text=response.content, stopped=response.stopped)
        finally:
            self._policy.release(key)

    @staticmethod
    async def _sample(
        policy: TokenPolicy, prompt: Prompt, sampling: SamplingParams, seed: int, context: GenerationContext
    ) -> Answer:
        ids = policy.chat.open(prompt)
        if policy.max_context is not None and len(ids) + sampling.max_tokens > policy.max_context:
            raise ContextLengthError(f"a prompt of {len(ids)} tokens leaves no room for the answer")
        generation = await policy.generate(
            GenerationRequest(
                prompt_ids=ids, sampling=sampling, seed=seed, stop_ids=policy.chat.stop_ids, context=context
            )
        )
        reply = policy.chat.parse(generation.ids, ids)
        return Answer(text=reply.content, stopped=generation.stopped)
