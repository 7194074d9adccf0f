"""Episodes of FrozenLake's expert in a model's tokens, played by the agent loop of rollouts."""

from __future__ import annotations

import asyncio
import random

from engine.agent.loop import AgentLoop
from engine.agent.prompts import load_prompt
from engine.config.environment import FrozenLakeConfig
from engine.config.rollout import AgentConfig
from engine.environments.frozenlake_expert import LakeExpert, expert_rows
from engine.inference.base import ChatRequest, ChatResponse, SamplingParams
from engine.inference.scripted.policies import ScriptedPolicy
from engine.inference.scripted.tokens import TokenizedPolicy
from engine.models.chat.base import Chat
from engine.rollout.environments import FrozenLakeEnvironments
from engine.tokens import TokenRecord
from engine.tools.schemas import LAKE_TOOLS
from engine.types import RolloutKey


class ExpertPolicy(ScriptedPolicy):
    """Policy that returns an expert's responses; it reads no messages."""

    name = "expert"

    def __init__(self, expert: LakeExpert) -> None:
        self._expert = expert

    async def respond(self, _request: ChatRequest) -> ChatResponse:
        """Return the expert's next response."""
        return ChatResponse(content=self._expert.respond())


class ExpertEpisodes:
    """Endless stream of the expert's episodes.

    Args:
        environment: maps, noise, seed.
        agent: prompt and limits, as in rollouts.
        chat: the trained policy's chat format.
    """

    def __init__(self, environment: FrozenLakeConfig, agent: AgentConfig, chat: Chat) -> None:
        self._noise = environment.expert_noise
        self._agent = agent
        self._chat = chat
        self._rng = random.Random(f"warm start/{environment.warm_start_seed}")
        self._rows = expert_rows(environment, self._rng)
        self._prompt = load_prompt(agent.prompt, agent.tool_format, LAKE_TOOLS)
        self._environments = FrozenLakeEnvironments(agent=agent)

    def take(self, count: int) -> list[TokenRecord]:
        """Return the next episodes."""

        async def play() -> list[TokenRecord]:
            return [await self._play() for _ in range(count)]

        return asyncio.run(play())

    async def _play(self) -> TokenRecord:
        row = next(self._rows)
        key = RolloutKey(iteration=0, phase="warm_start", task_id=row.task.id, index=0)
        environment = self._environments.make(key, row, seed=self._rng.getrandbits(63))
        expert = LakeExpert(environment.lake, noise=self._noise, rng=self._rng)
        loop = AgentLoop(
            environment=environment,
            policy=TokenizedPolicy(ExpertPolicy(expert), self._chat),
            prompt=self._prompt,
            config=self._agent,
            key=key,
            row=row,
            sampling=SamplingParams(),
            seed_of_step=lambda step: step,
            on_step=lambda _step: None,
        )
        return (await loop.run()).tokens
