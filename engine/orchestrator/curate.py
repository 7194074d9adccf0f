"""Runs of curation, with progress as events."""

from __future__ import annotations

import time

from engine.config.run import CurateRun
from engine.datasets.curation.curate import curate
from engine.orchestrator.context import RunContext, RunResult
from engine.orchestrator.setup import announce, open_backend, peak_memory_mb


async def make_dataset(config: CurateRun, run: RunContext) -> RunResult:
    """Curate the configured sources into a dataset under the data folder."""
    started = time.monotonic()
    announce(run)
    backend = await open_backend(config.sandbox, run)
    dataset = await run.interruptible(
        curate(
            config.curation,
            home=run.home,
            backend=backend,
            sandbox=config.sandbox,
            progress=run.progress,
            seed=config.seed,
        )
    )
    splits = {row.split for row in dataset.rows}
    return RunResult(
        state="succeeded",
        summary={
            "dataset": dataset.name,
            **{f"tasks_{split}": len(dataset.split(split)) for split in sorted(splits)},
            "seconds": round(time.monotonic() - started, 1),
            "peak_memory_mb": round(peak_memory_mb(), 1),
        },
    )
