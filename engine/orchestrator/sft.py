"""Supervised warm start: train a policy on generated episodes and save it as the run's checkpoint."""

from __future__ import annotations

import asyncio
import hashlib
import time
from pathlib import Path

from engine.config.environment import FrozenLakeConfig
from engine.config.run import SftRun
from engine.events.types import CheckpointSaved
from engine.models.loader import OpenedModel, open_model
from engine.orchestrator.context import RunContext, RunResult, RunStopped
from engine.orchestrator.policies.warm_start import imitate
from engine.orchestrator.setup import announce, peak_memory_mb
from engine.trainer.sft.training import train_sft


async def warm_start(config: SftRun, run: RunContext) -> RunResult:
    """Train for the configured minutes; other runs can then use the policy as ``run:<id>``.

    A stop ends the training early and keeps the weights; the training cannot be resumed.
    """
    started = time.monotonic()
    announce(run)
    if isinstance(config.environment, FrozenLakeConfig):
        return await imitate(config.environment, config, run)
    folder = run.run_dir / "checkpoints" / "00000"
    start = await asyncio.to_thread(_start, config, run) if config.sft.start else None
    metrics = await asyncio.to_thread(
        train_sft,
        config,
        out=folder,
        start=start,
        progress=run.progress,
        should_stop=run.ends_after_pause,
    )
    checksum = await asyncio.to_thread(_checksum, folder)
    run.sink.emit(CheckpointSaved, iteration=0, policy_version=0, path=str(folder), checksum=checksum)
    summary: dict[str, float | int | str | None] = {
        **metrics,
        "seconds": round(time.monotonic() - started, 1),
        "peak_memory_mb": round(peak_memory_mb(), 1),
    }
    try:
        run.check()
    except RunStopped as stop:
        return RunResult(state="stopped", reason=str(stop), summary=summary)
    return RunResult(state="succeeded", summary=summary)


def _start(config: SftRun, run: RunContext) -> OpenedModel:
    assert config.sft.start is not None
    return open_model(config.sft.start, home=run.home, max_context=config.agent.max_context)


def _checksum(folder: Path) -> str:
    """Return the SHA-256 of all files of weights, in the order of their names."""
    hashed = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            hashed.update(hashlib.file_digest(file, "sha256").digest())
    return hashed.hexdigest()
