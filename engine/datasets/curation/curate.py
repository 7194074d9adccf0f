"""Curation of a dataset from Python source trees with tests: one injected fault per task, verified by tests.

Fetch → baseline (stable tests and the lines they execute) → candidates → trials in fresh sandboxes
(``stability_runs`` test runs with the fault, one without) → tasks. Baselines and trials are stored, so that
an interrupted curation resumes. The result is deterministic for a given seed and given baselines.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from engine.config.learning.training import CurationConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.curation import handwritten
from engine.datasets.curation.baseline import (
    Baseline,
    ensure_image,
    image_name,
    measure_baseline,
    sandbox_spec,
)
from engine.datasets.curation.candidates import Candidate, CandidateQueue, find_candidates, split_by_file
from engine.datasets.curation.injected import WORKDIR, DetectedFault, make_row
from engine.datasets.curation.measurements import Measurements, Trial
from engine.datasets.curation.toolchain import ensure_toolchain
from engine.datasets.sources.fetch import Source, fetch_source
from engine.datasets.store import Dataset, dataset_path, load_dataset, save_dataset
from engine.errors import DatasetError, HostError, PreflightError, SandboxError
from engine.redaction import redact
from engine.sandbox.base import SandboxBackend
from engine.sandbox.local.images import image_exists
from engine.testing.testrun import driver_command, run_tests
from engine.types import TaskRow, TestOutcome

_HOST_ATTEMPTS = 3
"""Attempts per candidate when this machine fails, and consecutive failed candidates that end a curation."""
T = TypeVar("T")
Progress = Callable[[str, int, int], None]
_BATCH_PER_WORKER = 8
_VERSION = 1
"""Part of a dataset's fingerprint; raise it when curation produces other tasks from the same sources."""


@dataclass(slots=True)
class _Curation:
    """Data shared by all steps of one curation."""

    config: CurationConfig
    home: Path
    backend: SandboxBackend
    sandbox: SandboxConfig
    progress: Progress
    seed: int
    kept: dict[str, Measurements] = field(default_factory=dict)
    """Intact image → its measurements."""
    host_failures: list[Candidate] = field(default_factory=list)
    """Candidates given up in a row because this machine failed."""
    fates: Counter[str] = field(default_factory=Counter)
    """Number of tried candidates that became tasks (``kept``), or were dropped, by reason."""

    found: int = 0
    """Number of faults that tests detect, those of the current batch included."""
    is_live: bool = False
    """Whether new trials have begun. Until then kept ones are read, which an earlier attempt counted."""

    @property
    def wanted(self) -> int:
        return self.config.train_tasks + self.config.heldout_tasks

    def say(self, message: str) -> None:
        """Report the current activity, with the number of tasks so far once new trials have begun."""
        if self.is_live:
            self.progress(message, self.found, self.wanted)
        else:
            self.progress(message, 0, 0)


async def curate(
    config: CurationConfig,
    *,
    home: Path,
    backend: SandboxBackend,
    sandbox: SandboxConfig,
    progress: Progress,
    seed: int = 0,
) -> Dataset:
    """Build, save and return the dataset ``config.output``; reuse one built from the same inputs.

    Args:
        config: sources, output and targets.
        home: the data folder.
        backend, sandbox: sandboxes of the test runs, and their limits.
        progress: called with a message, tasks done and tasks wanted.
        seed: selects the tried faults and the held-out files.

    Raises:
        DatasetError: no source could be used, or the tests detected no fault.
    """
    run = _Curation(config=config, home=home, backend=backend, sandbox=sandbox, progress=progress, seed=seed)
    skipped: dict[str, str] = {}
    prepared = await _prepare(run, skipped)
    fingerprint = _fingerprint(run, prepared)
    existing = _unchanged(run, fingerprint)
    if existing is not None:
        progress(f"dataset '{config.output}' is up to date", len(existing.rows), len(existing.rows))
        return existing
    baselines = await _baselines(run, prepared, skipped)
    candidates = [
        candidate
        for baseline in baselines
        for candidate in find_candidates(
            baseline, max_function_lines=config.max_function_lines, kinds=config.fault_kinds
        )
    ]
    run.say(f"{len(candidates)} candidate faults on lines that tests execute")
    training, heldout = split_by_file(candidates, heldout_share=config.heldout_tasks / run.wanted, seed=seed)
    rows = await _collect(run, training, "train", config.train_tasks)
    if not rows:
        raise DatasetError("the tests detected no injected fault; choose sources with more thorough tests")
    rows += await _collect(run, heldout, "heldout", config.heldout_tasks)
    rows += await _extra_rows(run, skipped)
    provenance = {
        "fingerprint": fingerprint,
        "config": config.model_dump(mode="json"),
        "seed": seed,
        "sources": {source.spec: source.revision for source, _ in prepared},
        "skipped": skipped,
        "candidates": dict(sorted(run.fates.items())),
    }
    return save_dataset(home, config.output, rows, provenance)


async def _prepare(run: _Curation, skipped: dict[str, str]) -> list[tuple[Source, Path]]:
    """Return the sources that could be fetched, each with its toolchain."""

    async def prepare(spec: str) -> tuple[Source, Path] | None:
        try:
            source = await asyncio.to_thread(fetch_source, spec, run.home)
            return source, await asyncio.to_thread(ensure_toolchain, run.home, source.requirements)
        except (DatasetError, PreflightError) as error:
            _skip(run, skipped, spec, error)
            return None

    prepared = [await prepare(spec) for spec in run.config.sources]
    return _usable(prepared, skipped)


async def _baselines(
    run: _Curation, prepared: Sequence[tuple[Source, Path]], skipped: dict[str, str]
) -> list[Baseline]:
    permits = asyncio.Semaphore(run.config.workers)

    async def measure(source: Source, toolchain: Path) -> Baseline | None:
        try:
            async with permits:
                return await _baseline(run, source, toolchain)
        except DatasetError as error:
            _skip(run, skipped, source.spec, error)
            return None

    measured = await asyncio.gather(*(measure(source, toolchain) for source, toolchain in prepared))
    return _usable(measured, skipped)


async def _baseline(run: _Curation, source: Source, toolchain: Path) -> Baseline:
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


def _skip(run: _Curation, skipped: dict[str, str], spec: str, error: Exception) -> None:
    skipped[spec] = redact(str(error))
    run.say(f"skipped {spec}: {error}")


def _usable(found: Sequence[T | None], skipped: dict[str, str]) -> list[T]:
    usable = [item for item in found if item is not None]
    if not usable:
        reasons = "; ".join(f"{spec}: {reason}" for spec, reason in skipped.items())
        raise DatasetError(f"no source can be used. {reasons}")
    return usable


def _fingerprint(run: _Curation, prepared: Sequence[tuple[Source, Path]]) -> str:
    config = run.config.model_dump(mode="json", exclude={"workers"})
    images = [image_name(source, toolchain) for source, toolchain in prepared]
    content = json.dumps([_VERSION, config, run.sandbox.limits(), run.seed, images], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _unchanged(run: _Curation, fingerprint: str) -> Dataset | None:
    if not dataset_path(run.home, run.config.output).exists():
        return None
    existing = load_dataset(run.home, run.config.output)
    complete = all(image_exists(run.home, row.task.image) for row in existing.rows)
    return existing if complete and existing.provenance.get("fingerprint") == fingerprint else None


async def _collect(run: _Curation, candidates: Sequence[Candidate], split: str, wanted: int) -> list[TaskRow]:
    """Try candidates in batches (independent of timing) until enough are kept."""
    queue = CandidateQueue(candidates, seed=run.seed)
    permits = asyncio.Semaphore(run.config.workers)
    rows: list[TaskRow] = []
    names: set[str] = set()
    before = run.found

    async def detect(candidate: Candidate) -> DetectedFault | None:
        # Kept trials wait for no place, so that they count before new ones end.
        kept = run.kept[candidate.baseline.image].trial(candidate)
        async with permits if kept is None else nullcontext():
            run.is_live |= kept is None
            detected = await _despite_host(run, candidate, lambda: _detect_fault(run, candidate))
        if detected is not None:
            run.found = min(run.found + 1, before + wanted)
        if kept is None:
            run.say(f"{split} tasks")
        return detected

    while len(rows) < wanted:
        batch = queue.take(min(_BATCH_PER_WORKER * run.config.workers, 2 * (wanted - len(rows))))
        if not batch:
            break
        for detected in await asyncio.gather(*(detect(candidate) for candidate in batch)):
            if detected is None:
                continue
            if len(rows) >= wanted:
                run.fates["not_wanted"] += 1
                continue
            make = partial(
                asyncio.to_thread, make_row, detected, split, names, hint=run.config.hint, home=run.home
            )
            if (row := await _despite_host(run, detected.candidate, make)) is not None:
                queue.keep(detected.candidate)
                rows.append(row)
                run.fates["kept"] += 1
    if len(rows) < wanted:
        run.say(f"only {len(rows)} of {wanted} {split} tasks found")
    return rows


async def _despite_host(run: _Curation, candidate: Candidate, action: Callable[[], Awaitable[T]]) -> T | None:
    """Run an action on a candidate with retries; return None if this machine fails every time.

    Raises:
        HostError: this machine failed several candidates in a row.
    """
    for attempt in range(1, _HOST_ATTEMPTS + 1):
        try:
            result = await action()
        except HostError as error:
            if attempt < _HOST_ATTEMPTS:
                continue
            run.fates["machine"] += 1
            run.host_failures.append(candidate)
            if (count := len(run.host_failures)) >= _HOST_ATTEMPTS:
                raise HostError(f"this machine failed {count} candidates in a row: {error}") from error
            run.say(f"dropped a candidate in {candidate.path}: {error}")
        else:
            run.host_failures.clear()
            return result
    return None


async def _detect_fault(run: _Curation, candidate: Candidate) -> DetectedFault | None:
    """Return the candidate with its failing tests; None unless the tests detect the fault every time."""
    kept = run.kept[candidate.baseline.image]
    trial = kept.trial(candidate)
    if trial is None:
        try:
            trial = await _try(run, candidate)
        except HostError:
            raise
        except SandboxError as error:
            # A mutant may exhaust its sandbox; it makes a poor task, not a failed curation.
            run.fates["sandbox"] += 1
            run.say(f"dropped a candidate in {candidate.path}: {error}")
            return None
        if trial is None:
            run.fates["no_report"] += 1
            run.say(f"dropped a candidate in {candidate.path}: a run of its tests gave no report")
            return None
        kept.keep_trial(candidate, trial)
    if trial.problem:
        run.fates[trial.problem] += 1
        return None
    return DetectedFault(
        candidate=candidate,
        failing=trial.failing,
        passing=tuple(test for test in candidate.tests if test not in trial.failing),
        exception=trial.exception,
    )


async def _try(run: _Curation, candidate: Candidate) -> Trial | None:
    """Run the tests with and without the fault in one fresh sandbox.

    Returns:
        The trial; None if a test run timed out or had no report. The machine may be the cause, so the next
        curation tries again.

    Raises:
        SandboxError: the sandbox failed.
    """
    baseline = candidate.baseline
    command = driver_command(candidate.tests, baseline.source.roots)
    timeout = 10.0 + 20 * sum(baseline.seconds[test] for test in candidate.tests)
    spec = sandbox_spec(
        f"local:{baseline.image}",
        run.sandbox,
        run_id="curate",
        name=candidate.fault.function,
        lifetime_s=timeout * (run.config.stability_runs + 2) + 30,
    )
    path = f"{WORKDIR}/{candidate.path}"
    async with run.backend.open(spec) as box:
        await box.write_file(path, candidate.mutated.encode())
        first = await run_tests(box, command, timeout_s=timeout)
        if first.problem:
            return None
        outcomes = first.outcomes(candidate.tests)
        failing = tuple(test for test, outcome in outcomes.items() if outcome is not TestOutcome.PASSED)
        reported = {TestOutcome.PASSED, TestOutcome.FAILED, TestOutcome.ERROR}
        if not failing or not reported.issuperset(outcomes.values()):
            return Trial(problem="odd_outcome" if failing else "unnoticed")
        for _ in range(run.config.stability_runs - 1):
            repeated = await run_tests(box, command, timeout_s=timeout)
            if repeated.problem:
                return None
            if repeated.outcomes(candidate.tests) != outcomes:
                return Trial(problem="unstable")
        await box.write_file(path, candidate.source.encode())
        intact = await run_tests(box, command, timeout_s=timeout)
        if intact.problem:
            return None
        if set(intact.outcomes(candidate.tests).values()) != {TestOutcome.PASSED}:
            return Trial(problem="not_mended")
    return Trial(failing, first.case(failing[0]).exception)


async def _extra_rows(run: _Curation, skipped: dict[str, str]) -> list[TaskRow]:
    rows = []
    for name in run.config.extra_tasks:
        try:
            rows.append(await asyncio.to_thread(handwritten.build_task, name, run.home))
        except (DatasetError, PreflightError) as error:
            skipped[name] = redact(str(error))
            run.say(f"skipped {name}: {error}")
    return rows
