"""Hardening runs: a new version of a dataset, whose weak tasks have additional tests."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from functools import partial

from engine.config.run import HardenRun
from engine.datasets.store import Dataset
from engine.grading.hardening.dataset import LOST, harden_dataset
from engine.orchestrator.context import RunContext, RunResult
from engine.orchestrator.setup import announce, open_backend
from engine.orchestrator.verification.stored_trajectories import open_sources

_MAX_ALTERNATIVES = 16
"""Different passed patches of a task that are read."""


async def harden(config: HardenRun, run: RunContext) -> RunResult:
    """Harden the configured dataset.

    Raises:
        ConfigError: a run with alternatives does not exist or has no trajectories.
        DatasetError: the dataset cannot be read, or none of its tasks was hardened.
    """
    started = time.monotonic()
    announce(run)
    backend = await open_backend(config.sandbox, run)
    dataset = await run.interruptible(
        harden_dataset(
            config.curation,
            home=run.home,
            backend=backend,
            sandbox=config.sandbox,
            progress=partial(run.progress, is_whole=True),
            alternatives=await asyncio.to_thread(_passed_patches, config, run),
            run_id=run.run_id,
            seed=config.seed,
        )
    )
    _alert_of_lost(dataset, run)
    stages = {stage["stage"]: stage["commits"] for stage in dataset.provenance["funnel"]}
    counts = ("tests_added", "wrong_patches", "rejected_before", "rejected_after")
    return RunResult(
        state="succeeded",
        summary={
            "dataset": dataset.name,
            **stages,
            **{name: dataset.provenance[name] for name in counts},
            "seconds": round(time.monotonic() - started, 1),
        },
    )


def _alert_of_lost(dataset: Dataset, run: RunContext) -> None:
    """Report the tasks that stay as they are because of infrastructure or an error."""
    counts = [stage["lost"].get(reason, 0) for stage in dataset.provenance["funnel"] for reason in LOST]
    if not any(counts):
        return
    examples = [
        example for reason in sorted(LOST) for example in dataset.provenance["examples"].get(reason, ())
    ]
    named = {example["task"] for example in examples}
    run.alert(
        "warning",
        "hardening_infrastructure",
        f"{sum(counts)} of {len(dataset.rows)} tasks could not be examined; {examples[0]['task']}: "
        f"{examples[0]['detail']}",
        task_ids=[row.task.id for row in dataset.rows if row.task.instance_id[:300] in named][:20],
    )


def _passed_patches(config: HardenRun, run: RunContext) -> dict[str, list[str]]:
    """Return instance id → patches of the passed rollouts of the configured runs; a bounded number of each.

    Raises:
        ConfigError: a run does not exist or has no trajectories.
    """
    patches: defaultdict[str, list[str]] = defaultdict(list)
    names = config.curation.alternatives_of
    for source in open_sources(run, names, setting="curation.alternatives_of"):
        for trajectory in source.read(source.ids):
            known, patch = patches[trajectory.instance_id], trajectory.transcript.patch
            if (
                trajectory.resolved
                and patch.strip()
                and patch not in known
                and len(known) < _MAX_ALTERNATIVES
            ):
                known.append(patch)
    return patches
