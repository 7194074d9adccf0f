"""Initial policy of FrozenLake runs, trained by imitation unless an earlier run did so."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from engine.agent.prompts import load_prompt
from engine.config.environment import FrozenLakeConfig
from engine.config.policies import TransformerPolicyConfig
from engine.config.rollout import AgentConfig
from engine.config.run import EvaluateRun, ImproveRun, RolloutRun, SftRun, TrainRun
from engine.errors import ConfigError
from engine.events.types import CheckpointSaved
from engine.files import replace_folder
from engine.models.builtin.architectures import ARCHITECTURES
from engine.orchestrator.context import RunContext, RunResult, RunStopped
from engine.rollout.expert_episodes import ExpertEpisodes
from engine.tools.schemas import LAKE_TOOLS

WARM = "warm"
"""Value of ``policy.checkpoint`` in runs that start from the warm-start policy."""
_ARCHITECTURE = "frozenlake"
_FOLDER = "warm_starts"
_VERSION = 1
"""Version of the warm start; raise it whenever the same settings would produce other weights."""

Run = TypeVar("Run", TrainRun, ImproveRun, RolloutRun, EvaluateRun)


async def with_start_policy(config: Run, run: RunContext) -> Run:
    """Return the configuration with the checkpoint ``warm`` replaced by its folder.

    Raises:
        ConfigError: the environment has no warm start.
        RunStopped: the run was stopped while the policy was trained.
    """
    policy = config.policy
    if not isinstance(policy, TransformerPolicyConfig) or policy.checkpoint != WARM:
        return config
    if not isinstance(config.environment, FrozenLakeConfig):
        raise ConfigError(
            f"policy.checkpoint is '{WARM}', but only environment 'frozenlake' has a warm start: name a "
            "checkpoint"
        )
    folder = await _taught(config.environment, config.agent, run)
    return config.model_copy(update={"policy": policy.model_copy(update={"checkpoint": str(folder)})})


async def imitate(environment: FrozenLakeConfig, config: SftRun, run: RunContext) -> RunResult:
    """Perform a run of kind ``sft`` on FrozenLake; the warm start becomes this run's checkpoint."""
    try:
        taught = await _taught(environment, config.agent, run)
    except RunStopped as stop:
        return RunResult(state="stopped", reason=str(stop))
    folder = run.run_dir / "checkpoints" / "00000"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".", dir=folder.parent) as drafts:
        replace_folder(shutil.copytree(taught, Path(drafts) / folder.name), folder)
    checksum = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    run.sink.emit(CheckpointSaved, iteration=0, policy_version=0, path=str(folder), checksum=checksum)
    return RunResult(state="succeeded", summary={"from": str(taught)})


async def _taught(environment: FrozenLakeConfig, agent: AgentConfig, run: RunContext) -> Path:
    while True:
        folder = await asyncio.to_thread(
            warm_start,
            environment,
            agent,
            home=run.home,
            progress=run.progress,
            should_stop=lambda: run.must_end or run.control.desired() == "pause",
        )
        if folder is not None:
            run.check()
            return folder
        await run.safe_point()  # a pause frees the lock for other runs: start over, or reuse their result


def warm_start(
    environment: FrozenLakeConfig,
    agent: AgentConfig,
    *,
    home: Path,
    progress: Callable[[str, int, int], None] = lambda _message, _done, _total: None,
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
    from engine.trainer.sft.imitation import (  # deferred: scripted runs never load torch
        ImitationSettings,
        train_by_imitation,
    )

    folder = home / _FOLDER / f"frozenlake-{_content_hash(environment, agent)}"
    train_by_imitation(
        folder,
        ImitationSettings(
            architecture=_ARCHITECTURE,
            steps=environment.warm_start_steps,
            batch_size=environment.warm_start_trajectories,
            seed=environment.warm_start_seed,
        ),
        partial(ExpertEpisodes, environment, agent),
        {
            "command": "engine.orchestrator.policies.warm_start.warm_start",
            "environment": environment.model_dump(mode="json"),
            "agent": agent.model_dump(mode="json"),
        },
        progress=progress,
        should_stop=should_stop,
    )
    return folder if folder.is_dir() else None


def _content_hash(environment: FrozenLakeConfig, agent: AgentConfig) -> str:
    prompt = load_prompt(agent.prompt, agent.tool_format, LAKE_TOOLS).content_hash
    content = [
        _VERSION,
        environment.model_dump(mode="json"),
        agent.model_dump(mode="json"),
        prompt,
        ARCHITECTURES[_ARCHITECTURE].to_json(),
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
