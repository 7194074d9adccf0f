"""Hardening runs: a new version of a dataset, whose weak tasks have additional tests."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from engine.config.run import HardenRun
from engine.datasets.store import Dataset
from engine.grading.hardening.dataset import LOST, harden_dataset
from engine.orchestrator.context import RunContext, RunResult
from engine.orchestrator.setup import announce, open_backend
from engine.orchestrator.verification.stored_trajectories import open_sources, patches_with
from engine.types import Verdict

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
            alternatives=await run.interruptible(asyncio.to_thread(_passed_patches, config, run)),
            run_id=run.run_id,
            seed=config.seed,
        )
    )
    _alert_of_lost(dataset, run)
    stages = {stage["stage"]: stage["reached"] for stage in dataset.provenance["funnel"]}
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
    named = {example["item"] for example in examples}
    run.alert(
        "warning",
        "hardening_infrastructure",
        f"{sum(counts)} of {len(dataset.rows)} tasks could not be examined; {examples[0]['item']}: "
        f"{examples[0]['detail']}",
        task_ids=[row.task.id for row in dataset.rows if row.task.instance_id[:300] in named][:20],
    )


def _passed_patches(config: HardenRun, run: RunContext) -> dict[tuple[str, str], list[str]]:
    """Return the patches of the passed rollouts of the configured runs, by ``RowIdentity.start``.

    Raises:
        ConfigError: a run does not exist or has no trajectories.
    """
    sources = open_sources(run, config.curation.alternatives_of, setting="curation.alternatives_of")
    return patches_with(Verdict.PASSED, sources, limit=_MAX_ALTERNATIVES)
