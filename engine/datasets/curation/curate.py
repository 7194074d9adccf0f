"""Curation of a dataset from Python source trees with tests: injected or written faults, proven by tests.

Fetch → baseline (stable tests and the lines they execute) → candidates → trials in fresh sandboxes
(``stability_runs`` test runs with the fault, one without) → tasks. Baselines, trials and a model's answers
are stored, so that an interrupted curation resumes. The result is deterministic for a given seed and given
baselines.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from engine.config.curation import CurationConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.cached_model import CachedModel
from engine.datasets.curation import handwritten
from engine.datasets.curation.baseline import Baseline, ensure_image, image_name, measure_baseline
from engine.datasets.curation.candidates import Candidate, find_candidates, split_by_file
from engine.datasets.curation.collection import collect, stages
from engine.datasets.curation.measurements import Measurements
from engine.datasets.curation.toolchain import ensure_toolchain
from engine.datasets.curation.trials import Curation
from engine.datasets.curation.written.functions import find_functions
from engine.datasets.funnel import Funnel, NoTasksError, Progress
from engine.datasets.kept_files import using
from engine.datasets.sources.fetch import Source, fetch_source
from engine.datasets.store import Dataset, dataset_path, load_dataset, save_dataset
from engine.errors import DatasetError, PreflightError
from engine.redaction import redact
from engine.sandbox.base import SandboxBackend
from engine.sandbox.local.images import image_exists
from engine.threads import in_thread
from engine.tools import printable
from engine.types import TaskRow

T = TypeVar("T")
_VERSION = 1
"""Part of a dataset's fingerprint; raise it when curation produces other tasks from the same sources."""


async def curate(
    config: CurationConfig,
    *,
    home: Path,
    backend: SandboxBackend,
    sandbox: SandboxConfig,
    progress: Progress,
    seed: int = 0,
    writer: CachedModel | None = None,
) -> Dataset:
    """Build, save and return the dataset ``config.output``; reuse one built from the same inputs.

    Args:
        config: sources, output and targets.
        home: the data folder.
        backend, sandbox: sandboxes of the test runs, and their limits.
        progress: receives a report a second at most, with the tasks done and those wanted.
        seed: selects the tried faults and the held-out files.
        writer: model that writes the faults; without one they are injected.

    Raises:
        DatasetError: no source could be used.
        NoTasksError: the tests detected no fault.
        RunEndingError: the writer answers no question any more.
    """
    run = Curation(
        config=config,
        home=home,
        backend=backend,
        sandbox=sandbox,
        progress=progress,
        seed=seed,
        funnel=Funnel(
            stages=stages(with_writer=writer is not None, are_combined=config.faults_per_task > 1),
            per_task=config.faults_per_task,
        ),
        writer=writer,
    )
    async with using(home):
        return await _curated(run)


async def _curated(run: Curation) -> Dataset:
    prepared, config, progress, seed = await _prepare(run), run.config, run.progress, run.seed
    fingerprint = _fingerprint(run, prepared)
    existing = _unchanged(run, fingerprint)
    if existing is not None:
        progress(f"dataset '{config.output}' is up to date", len(existing.rows), len(existing.rows))
        return existing
    baselines = await _baselines(run, prepared)
    candidates = await in_thread(partial(_candidates, run, baselines))
    run.funnel.total = run.funnel.candidates = len(candidates)
    items = "candidate faults on lines" if run.writer is None else "functions"
    run.say(f"{len(candidates)} {items} that tests execute")
    heldout_share = config.heldout_tasks / (config.train_tasks + config.heldout_tasks)
    training, heldout = split_by_file(candidates, heldout_share=heldout_share, seed=seed)
    rows = await collect(run, training, "train", config.train_tasks)
    if rows:
        rows += await collect(run, heldout, "heldout", config.heldout_tasks)
        rows += await _extra_rows(run)
    run.funnel.is_over = True
    state = run.funnel.snapshot()
    progress("all candidates decided", *run.amounts(), funnel=state)
    record = {
        "fingerprint": fingerprint,
        "config": config.model_dump(mode="json"),
        "seed": seed,
        "sources": {source.spec: source.revision for source, _ in prepared},
        **state.model_dump(mode="json"),
    }
    if not rows:
        problem = f"the tests detected no fault in {len(candidates)} {run.funnel.stages[0][0]}"
        raise NoTasksError(problem, record, detail="choose sources with more thorough tests")
    return save_dataset(run.home, config.output, rows, record)


def _candidates(run: Curation, baselines: Sequence[Baseline]) -> list[Candidate]:
    """Return all candidates; those of a writer have yet to get their faults."""
    injected = partial(find_candidates, kinds=run.config.fault_kinds)
    find = injected if run.writer is None else partial(find_functions)
    return [
        candidate
        for baseline in baselines
        for candidate in find(baseline, max_function_lines=run.config.max_function_lines)
    ]


async def _prepare(run: Curation) -> list[tuple[Source, Path]]:
    """Return the sources that could be fetched, each with its toolchain."""

    async def prepare(spec: str) -> tuple[Source, Path] | None:
        try:
            source = await asyncio.to_thread(fetch_source, spec, run.home)
            return source, await asyncio.to_thread(ensure_toolchain, run.home, source.requirements)
        except (DatasetError, PreflightError) as error:
            _skip(run, spec, error)
            return None

    prepared = [await prepare(spec) for spec in run.config.sources]
    return _usable(run, prepared)


async def _baselines(run: Curation, prepared: Sequence[tuple[Source, Path]]) -> list[Baseline]:
    permits = asyncio.Semaphore(run.config.workers)

    async def measure(source: Source, toolchain: Path) -> Baseline | None:
        try:
            async with permits:
                return await _baseline(run, source, toolchain)
        except DatasetError as error:
            _skip(run, source.spec, error)
            return None

    measured = await asyncio.gather(*(measure(source, toolchain) for source, toolchain in prepared))
    return _usable(run, measured)


async def _baseline(run: Curation, source: Source, toolchain: Path) -> Baseline:
    """Return the stored baseline of a source, or measure it. Raises DatasetError."""
    image = await asyncio.to_thread(ensure_image, source, toolchain, run.home)
    kept = Measurements(run.home, image, stability_runs=run.config.stability_runs, sandbox=run.sandbox)
    run.kept[image] = kept
    stored = await asyncio.to_thread(kept.baseline, source, toolchain)
    if stored is not None:
        return stored
    run.say(f"baseline of {source.spec}")
    measured = await measure_baseline(
        source, toolchain, run.config, home=run.home, backend=run.backend, sandbox=run.sandbox
    )
    await asyncio.to_thread(kept.keep_baseline, measured)
    return measured


def _skip(run: Curation, spec: str, error: Exception) -> None:
    run.funnel.skipped[spec] = redact(printable(str(error)))
    run.say(f"skipped {spec}: {error}")


def _usable(run: Curation, found: Sequence[T | None]) -> list[T]:
    usable = [item for item in found if item is not None]
    if not usable:
        reasons = "; ".join(f"{spec}: {reason}" for spec, reason in run.funnel.skipped.items())
        raise DatasetError(f"no source can be used. {reasons}")
    return usable


def _fingerprint(run: Curation, prepared: Sequence[tuple[Source, Path]]) -> str:
    config = run.config.model_dump(mode="json", exclude={"workers"})
    weights = run.writer.weights if run.writer is not None else ""
    images = [image_name(source, toolchain) for source, toolchain in prepared]
    content = json.dumps([_VERSION, config, run.sandbox.limits(), run.seed, images, weights], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _unchanged(run: Curation, fingerprint: str) -> Dataset | None:
    if not dataset_path(run.home, run.config.output).exists():
        return None
    existing = load_dataset(run.home, run.config.output)
    complete = all(image_exists(run.home, row.task.image) for row in existing.rows)
    return existing if complete and existing.provenance.get("fingerprint") == fingerprint else None


async def _extra_rows(run: Curation) -> list[TaskRow]:
    rows = []
    for name in run.config.extra_tasks:
        try:
            rows.append(await asyncio.to_thread(handwritten.build_task, name, run.home))
        except (DatasetError, PreflightError) as error:
            _skip(run, name, error)
    return rows
