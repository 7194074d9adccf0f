"""Warm start for FrozenLake: a fresh policy imitates an expert that often moves at random.

A policy that never reaches the goal gives reinforcement learning no signal; one taught by a perfect
expert leaves nothing to learn. The expert follows a shortest path or, with ``expert_noise``, any
direction, after thinking aloud of a random number of the next moves. Its episodes are played by the loop
that rollouts use. The same settings give the same weights.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import platform
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from torch import Tensor
from torch.nn import functional

from engine.agent.loop import AgentLoop
from engine.agent.prompts import load_prompt
from engine.config.environment import FrozenLakeConfig
from engine.config.rollout import AgentConfig
from engine.environments.frozenlake import Lake
from engine.environments.frozenlake_maps import (
    DIRECTIONS,
    draw_grid,
    frozenlake_rows,
    goal_distances,
    lake_row,
)
from engine.inference.base import ChatRequest, ChatResponse, SamplingParams
from engine.inference.scripted.policies import ScriptedPolicy
from engine.inference.scripted.tokens import TokenizedPolicy
from engine.models.builtin.architectures import ARCHITECTURES
from engine.models.builtin.transformer import Transformer
from engine.models.chat.base import Chat
from engine.models.chat.chatml import ChatML
from engine.models.opening import fresh_tokenizer, save_policy_checkpoint
from engine.rollout.environments import FrozenLakeEnvironments
from engine.tokens import TokenRecord
from engine.tools.rendering import render_response
from engine.tools.schemas import LAKE_TOOLS, MOVE
from engine.trainer.sft.muon import MuonWithAdam
from engine.types import RolloutKey, ToolCall

ARCHITECTURE = "frozenlake"
FOLDER = "warm_starts"
_VERSION = 1
"""Version of the warm start; raise it whenever the same settings would produce other weights."""
_MUON_RATE, _ADAM_RATE = 0.02, 2e-3
_WARMUP_STEPS, _CONSTANT_UNTIL, _FINAL_SHARE = 20, 0.7, 0.1
_PROMPT_WEIGHT = 0.1
_LONGEST_THOUGHT = 5
_REPORT_EVERY = 10
_MICROBATCH_TOKENS = 2048
_WIDTH_STEP = 32

Progress = Callable[[str, int, int], None]


class Expert(ScriptedPolicy):
    """Player with full knowledge of the map.

    Args:
        lake: the map.
        noise: probability that a move is in a random direction instead of towards the goal.
        rng: randomness of the noise and of the length of thoughts.
    """

    name = "expert"

    def __init__(self, lake: Lake, *, noise: float, rng: random.Random) -> None:
        self._lake = lake
        self._distances = goal_distances(lake.draw())
        self._noise = noise
        self._rng = rng

    async def respond(self, _request: ChatRequest) -> ChatResponse:
        """Return the next move, its thought before it."""
        random_move = self._rng.random() < self._noise
        first = self._rng.choice(list(DIRECTIONS)) if random_move else ""
        plan = self._plan(first)
        thought = " ".join(plan[: self._rng.randint(0, _LONGEST_THOUGHT)])
        call = ToolCall(name=MOVE.name, arguments={"direction": plan[0]})
        return ChatResponse(content=render_response(thought, call, "words"))

    def _plan(self, first: str) -> list[str]:
        """Return the moves to the goal, starting with ``first`` if given; ends early in a hole."""
        plan, square = [], self._lake.player
        while first or self._distances.get(square, 0):
            direction = first or self._towards_goal(square)
            plan.append(direction)
            aim = (square[0] + DIRECTIONS[direction][0], square[1] + DIRECTIONS[direction][1])
            square, first = aim if self._lake.contains(aim) else square, ""
        return plan

    def _towards_goal(self, square: tuple[int, int]) -> str:
        near = self._distances[square] - 1
        good = [
            word
            for word, (down, right) in DIRECTIONS.items()
            if self._distances.get((square[0] + down, square[1] + right)) == near
        ]
        return self._rng.choice(good)


class Episodes:
    """Endless stream of the expert's episodes, on maps of which none is held out.

    Args:
        environment: maps, noise, seed.
        agent: prompt and limits, as in rollouts.
        chat: the trained policy's conversations.
    """

    def __init__(self, environment: FrozenLakeConfig, agent: AgentConfig, chat: Chat) -> None:
        self._config = environment
        self._agent = agent
        self._chat = chat
        self._rng = random.Random(f"warm start/{environment.warm_start_seed}")
        self._prompt = load_prompt(agent.prompt, agent.tool_format, LAKE_TOOLS)
        self._environments = FrozenLakeEnvironments(agent=agent)
        self._heldout = {
            str(row.task.metadata["grid"]) for row in frozenlake_rows(environment) if row.split == "heldout"
        }

    def take(self, count: int) -> list[TokenRecord]:
        """Return the next episodes."""

        async def play() -> list[TokenRecord]:
            return [await self._play() for _ in range(count)]

        return asyncio.run(play())

    async def _play(self) -> TokenRecord:
        rng = self._rng
        grid = draw_grid(self._config, rng)
        while grid in self._heldout:
            grid = draw_grid(self._config, rng)
        row = lake_row(self._config, grid, "warm_start", 0)
        key = RolloutKey(iteration=0, phase="warm_start", task_id=row.task.id, index=0)
        environment = self._environments.make(key, row, seed=rng.getrandbits(63))
        expert = Expert(environment.lake, noise=self._config.expert_noise, rng=rng)
        loop = AgentLoop(
            environment=environment,
            policy=TokenizedPolicy(expert, self._chat),
            prompt=self._prompt,
            config=self._agent,
            key=key,
            row=row,
            sampling=SamplingParams(),
            seed_of_step=lambda step: step,
            on_step=lambda _step: None,
        )
        return (await loop.run()).tokens


def warm_start(
    environment: FrozenLakeConfig,
    agent: AgentConfig,
    *,
    home: Path,
    progress: Progress = lambda _message, _done, _total: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Path | None:
    """Return the checkpoint folder of a policy trained by imitation; trained once, then reused.

    Args:
        environment: the maps, and the ``warm_start_*`` settings.
        agent: prompt and limits of the episodes.
        home: the data folder; the checkpoint is under ``warm_starts/``, named by a hash of all it depends on.
        progress: called with a message, steps done and steps in all.
        should_stop: polled every step.

    Returns:
        The folder; None when it was stopped, with nothing written.
    """
    folder = home / FOLDER / f"frozenlake-{_content_hash(environment, agent)}"
    with _alone(folder, progress, should_stop) as may_work:
        if may_work and not folder.is_dir():
            _teach(folder, environment, agent, progress, should_stop)
    return folder if folder.is_dir() else None


def _content_hash(environment: FrozenLakeConfig, agent: AgentConfig) -> str:
    prompt = load_prompt(agent.prompt, agent.tool_format, LAKE_TOOLS).content_hash
    content = [
        _VERSION,
        environment.model_dump(mode="json"),
        agent.model_dump(mode="json"),
        prompt,
        ARCHITECTURES[ARCHITECTURE].to_json(),
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def _alone(folder: Path, progress: Progress, should_stop: Callable[[], bool]) -> Iterator[bool]:
    """Hold the folder's lock, so that runs which need the same policy train it once; False when stopped."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_suffix(".lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        progress("warm start: another run trains it", 0, 0)
        try:
            lock.acquire(cancel_check=should_stop)
        except Timeout:
            yield False
            return
    try:
        yield True
    finally:
        lock.release()


def _teach(
    folder: Path,
    environment: FrozenLakeConfig,
    agent: AgentConfig,
    progress: Progress,
    should_stop: Callable[[], bool],
) -> None:
    torch.set_num_threads(1)  # sums, and with them the weights, depend on it
    tokenizer = fresh_tokenizer(ARCHITECTURE)
    model = Transformer(ARCHITECTURES[ARCHITECTURE], seed=environment.warm_start_seed)
    episodes = Episodes(environment, agent, ChatML(tokenizer))
    optimizer = MuonWithAdam(model, muon_rate=_MUON_RATE, adam_rate=_ADAM_RATE)
    steps = environment.warm_start_steps
    for step in range(steps):
        if should_stop():
            return
        loss = _accumulate(model, episodes.take(environment.warm_start_trajectories))
        optimizer.step(_rate_factor(step, steps))
        if step % _REPORT_EVERY == 0 or step + 1 == steps:
            progress(f"warm start: loss {loss:.3f}", step + 1, steps)
    provenance = {
        "command": "engine.trainer.sft.frozenlake.warm_start",
        "environment": environment.model_dump(mode="json"),
        "agent": agent.model_dump(mode="json"),
        "final_loss": loss,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    save_policy_checkpoint(folder, model, tokenizer, provenance)


def _rate_factor(step: int, steps: int) -> float:
    """Return the share of the peak learning rate: a short warm-up, constant, then linear down."""
    decay = max(0.0, (step / steps - _CONSTANT_UNTIL) / (1 - _CONSTANT_UNTIL))
    return min(1.0, (step + 1) / _WARMUP_STEPS) * (1 - (1 - _FINAL_SHARE) * decay)


def _accumulate(model: Transformer, episodes: list[TokenRecord]) -> float:
    """Accumulate the gradient of one step's episodes; return the mean loss of the expert's tokens."""
    sampled = sum(episode.num_sampled for episode in episodes)
    weight = sampled + _PROMPT_WEIGHT * (sum(len(episode) for episode in episodes) - sampled)
    total = 0.0
    for batch in _microbatches(episodes):
        ids, mask, inside = _collate(batch)
        logits = model.logits(model.hidden(ids[:, :-1]))
        losses = functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        weights = (torch.where(mask, 1.0, _PROMPT_WEIGHT) * inside)[:, 1:]
        torch.autograd.backward((losses * weights).sum() / weight)
        total += float(losses.detach()[mask[:, 1:]].sum())
    return total / sampled


def _collate(batch: Sequence[TokenRecord]) -> tuple[Tensor, Tensor, Tensor]:
    """Return right-padded ids [B, T] and two boolean masks [B, T]: sampled tokens, real tokens.

    T - 1, the width of the model's input, is a multiple of 32: a CPU's matrix kernels are compiled per shape.
    """
    longest = max(len(episode.ids) for episode in batch)
    width = -(-(longest - 1) // _WIDTH_STEP) * _WIDTH_STEP + 1
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    mask = torch.zeros(len(batch), width, dtype=torch.bool)
    inside = torch.zeros(len(batch), width, dtype=torch.bool)
    for row, episode in enumerate(batch):
        length = len(episode.ids)
        ids[row, :length] = torch.tensor(episode.ids)
        mask[row, :length] = torch.tensor(episode.mask, dtype=torch.bool)
        inside[row, :length] = True
    return ids, mask, inside


def _microbatches(episodes: list[TokenRecord]) -> Iterator[list[TokenRecord]]:
    """Yield batches of episodes of similar length: most are short, and small batches suit a CPU."""
    batch: list[TokenRecord] = []
    for episode in sorted(episodes, key=lambda episode: -len(episode)):
        if batch and (len(batch) + 1) * len(batch[0]) > _MICROBATCH_TOKENS:
            yield batch
            batch = []
        batch.append(episode)
    if batch:
        yield batch
