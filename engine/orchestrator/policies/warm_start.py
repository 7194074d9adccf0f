"""Initial policy of FrozenLake runs, trained by imitation unless an earlier run did so."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from engine.config.environment import FrozenLakeConfig
from engine.config.policies import TransformerPolicyConfig
from engine.config.rollout import AgentConfig
from engine.config.run import EvaluateRun, ImproveRun, RolloutRun, SftRun, TrainRun
from engine.errors import ConfigError
from engine.events.types import CheckpointSaved
from engine.files import replace_folder
from engine.orchestrator.context import RunContext, RunResult, RunStopped

WARM = "warm"
"""Value of ``policy.checkpoint`` in runs that start from the warm-start policy."""

Run = TypeVar("Run", TrainRun, ImproveRun, RolloutRun, EvaluateRun)


async def with_start_policy(config: Run, run: RunContext) -> Run:
    """Return the configuration with the checkpoint ``warm`` replaced by its folder.

    Raises:
        ConfigError: the environment has no warm start.
        RunStopped: the run was stopped while the policy was taught.
    """
    policy = config.policy
    if not isinstance(policy, TransformerPolicyConfig) or policy.checkpoint != WARM:
        return config
    if not isinstance(config.environment, FrozenLakeConfig):
        raise ConfigError(
            f"policy.checkpoint is '{WARM}', but only environment 'frozenlake' teaches its own start: name a "
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
    from engine.trainer.sft.frozenlake import warm_start  # deferred: scripted runs never load torch

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
        await run.safe_point()  # a paused run holds no other up: it starts over, or finds what others taught
