"""Curation runs, with progress as events."""

from __future__ import annotations

import time
from collections.abc import Sequence

from engine.config.rollout import GradingConfig
from engine.config.run import CommitCurateRun, CurateRun
from engine.datasets.cached_model import CachedModel
from engine.datasets.commits.make import make_commit_tasks
from engine.datasets.commits.trials import Workshop
from engine.datasets.curation.curate import curate
from engine.datasets.store import Dataset, dataset_path
from engine.events.curation import CurationFunnel
from engine.grading.counterfactual.prover import Prover
from engine.grading.counterfactual.store import FileReferences
from engine.orchestrator.context import RunContext, RunResult
from engine.orchestrator.policies.chat_models import open_chat_model
from engine.orchestrator.setup import announce, open_backend, peak_memory_mb
from engine.orchestrator.tasks.references import make_references

_PROOF_S = 600.0
"""Time limit of the tests of a whole source."""


async def make_dataset_of_commits(config: CommitCurateRun, run: RunContext) -> RunResult:
    """Make tasks of the commits of the configured repositories."""
    started = time.monotonic()
    announce(run)
    backend = await open_backend(config.sandbox, run)
    writer = await open_chat_model(config.curation.writer, config.curation.writing, "writer", run)
    judge = await open_chat_model(config.curation.judge, config.curation.writing, "judge", run)
    shop = Workshop(
        config=config.curation,
        home=run.home,
        backend=backend,
        sandbox=config.sandbox,
        seed=config.seed,
        writer=writer,
        judge=judge,
    )

    def report(message: str, done: int, total: int, *, funnel: CurationFunnel | None = None) -> None:
        run.progress(message, done, total, is_whole=funnel is not None, funnel=funnel)

    dataset = await run.interruptible(make_commit_tasks(shop, report))
    return _result(dataset, (writer, judge), started)


async def make_dataset(config: CurateRun, run: RunContext) -> RunResult:
    """Curate the configured sources into a dataset under the data folder."""
    started = time.monotonic()
    announce(run)
    backend = await open_backend(config.sandbox, run)
    writer = await open_chat_model(config.curation.writer, config.curation.writing, "writer", run)
    dataset = await run.interruptible(
        curate(
            config.curation,
            home=run.home,
            backend=backend,
            sandbox=config.sandbox,
            progress=run.progress,
            seed=config.seed,
            writer=writer,
        )
    )
    prover = Prover(
        backend=backend,
        config=GradingConfig(timeout_s=_PROOF_S, reuse_verdicts=False),
        sandbox=config.sandbox,
        run_id=run.run_id,
    )
    tasks, wanted = len(dataset.rows), config.curation.train_tasks + config.curation.heldout_tasks
    references = FileReferences(dataset_path(run.home, dataset.name))
    proofs = make_references(
        dataset.rows,
        prover,
        references,
        parallel=config.curation.workers,
        progress=lambda done: run.progress(
            f"proving the mutated tests of audits: {done} of {tasks}", min(tasks, wanted), wanted
        ),
    )
    for problem in await run.interruptible(proofs):
        run.alert("warning", "counterfactual_unproven", f"mutated tests are not proven yet: {problem}")
    return _result(dataset, (writer,), started)


def _result(dataset: Dataset, models: Sequence[CachedModel | None], started: float) -> RunResult:
    funnel = dataset.provenance.get("funnel", ())  # datasets of earlier versions have none
    cost = sum(model.model.spent for model in models if model is not None)
    splits = {row.split for row in dataset.rows}
    return RunResult(
        state="succeeded",
        summary={
            "dataset": dataset.name,
            **{f"tasks_{split}": len(dataset.split(split)) for split in sorted(splits)},
            **{stage["stage"]: stage["reached"] for stage in funnel},
            **({"cost": cost} if cost else {}),
            "seconds": round(time.monotonic() - started, 1),
            "peak_memory_mb": round(peak_memory_mb(), 1),
        },
    )
