"""Makes a dataset from Python source trees with tests: one injected fault per task, kept when tests notice.

Fetch → baseline (which tests pass every time, what they execute) → candidates → each is tried in a
fresh sandbox: broken ``stability_runs`` times, mended once → tasks. Deterministic under its seed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config.rollout import SandboxConfig
from engine.config.training import CurationConfig
from engine.datasets import handwritten
from engine.datasets.baseline import Baseline, image_environment, measure_baseline, sandbox_spec
from engine.datasets.candidates import Candidate, CandidateQueue, find_candidates, split_by_file
from engine.datasets.patches import count_changed_lines, make_patch
from engine.datasets.sources import fetch_source
from engine.datasets.statements import problem_statement
from engine.datasets.store import Dataset, dataset_path, load_dataset, save_dataset, with_content_id
from engine.datasets.testrun import driver_command, run_tests
from engine.datasets.toolchain import MOUNT
from engine.errors import DatasetError, PreflightError, SandboxError
from engine.sandbox.base import SandboxBackend
from engine.sandbox.images import build_image, image_exists
from engine.types import Task, TaskAnswer, TaskRow, TestOutcome

Progress = Callable[[str, int, int], None]
_WORKDIR = "/testbed"
_BATCH_PER_WORKER = 8
_VERSION = 1
"""Part of a dataset's fingerprint: raise it when curation makes other tasks from the same sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noticed:
    """A candidate whose fault tests notice every time."""

    candidate: Candidate
    failing: tuple[str, ...]
    passing: tuple[str, ...]
    exception: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curation:
    """What every step of one curation needs."""

    config: CurationConfig
    home: Path
    backend: SandboxBackend
    sandbox: SandboxConfig
    progress: Progress
    seed: int

    @property
    def wanted(self) -> int:
        return self.config.train_tasks + self.config.heldout_tasks


async def curate(
    config: CurationConfig,
    *,
    home: Path,
    backend: SandboxBackend,
    sandbox: SandboxConfig,
    progress: Progress,
    seed: int = 0,
) -> Dataset:
    """Make, save and return the dataset ``config.output``; one made from the same inputs is re-used.

    Args:
        config: what to make.
        home: the data folder.
        backend: where tests run.
        sandbox: limits of those sandboxes.
        progress: called with a sentence, tasks done and tasks wanted.
        seed: decides which faults are tried and which files are held out.

    Raises:
        DatasetError: no source could be used, or no fault was noticed.
    """
    run = _Curation(config=config, home=home, backend=backend, sandbox=sandbox, progress=progress, seed=seed)
    baselines, skipped = await _baselines(run)
    fingerprint = _fingerprint(run, baselines)
    known = _unchanged(run, fingerprint)
    if known is not None:
        progress(f"dataset '{config.output}' is up to date", len(known.rows), len(known.rows))
        return known
    candidates = [
        candidate
        for baseline in baselines
        for candidate in find_candidates(baseline, max_function_lines=config.max_function_lines)
    ]
    progress(f"{len(candidates)} candidate faults on lines that tests execute", 0, run.wanted)
    training, heldout = split_by_file(candidates, heldout_share=config.heldout_tasks / run.wanted, seed=seed)
    rows = await _collect(run, training, "train", config.train_tasks, 0)
    if not rows:
        raise DatasetError("no injected fault was noticed by the tests; give sources with closer tests")
    rows += await _collect(run, heldout, "heldout", config.heldout_tasks, len(rows))
    rows += await _extra_rows(run, skipped)
    provenance = {
        "fingerprint": fingerprint,
        "config": config.model_dump(mode="json"),
        "seed": seed,
        "sources": {baseline.source.spec: baseline.source.revision for baseline in baselines},
        "skipped": skipped,
        "num_candidates": len(candidates),
    }
    return save_dataset(home, config.output, rows, provenance)


async def _baselines(run: _Curation) -> tuple[list[Baseline], dict[str, str]]:
    """Usable sources, and why the others are not."""
    skipped: dict[str, str] = {}
    permits = asyncio.Semaphore(run.config.workers)

    async def one(spec: str) -> Baseline | None:
        try:
            async with permits:
                run.progress(f"baseline of {spec}", 0, run.wanted)
                source = await asyncio.to_thread(fetch_source, spec, run.home)
                return await measure_baseline(
                    source, run.config, home=run.home, backend=run.backend, sandbox=run.sandbox
                )
        except (DatasetError, PreflightError) as error:
            skipped[spec] = str(error)
            run.progress(f"skipped {spec}: {error}", 0, run.wanted)
            return None

    found = await asyncio.gather(*(one(spec) for spec in run.config.sources))
    usable = [baseline for baseline in found if baseline is not None]
    if not usable:
        reasons = "; ".join(f"{spec}: {reason}" for spec, reason in skipped.items())
        raise DatasetError(f"no source can be used. {reasons}")
    return usable, skipped


def _fingerprint(run: _Curation, baselines: Sequence[Baseline]) -> str:
    config = run.config.model_dump(mode="json", exclude={"workers"})
    images = [baseline.image for baseline in baselines]
    content = json.dumps([_VERSION, config, run.seed, images], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _unchanged(run: _Curation, fingerprint: str) -> Dataset | None:
    if not dataset_path(run.home, run.config.output).exists():
        return None
    known = load_dataset(run.home, run.config.output)
    complete = all(image_exists(run.home, row.task.image) for row in known.rows)
    return known if complete and known.provenance.get("fingerprint") == fingerprint else None


async def _collect(
    run: _Curation, candidates: Sequence[Candidate], split: str, wanted: int, done: int
) -> list[TaskRow]:
    """Try candidates in batches (so that the outcome does not depend on timing) until enough are kept."""
    queue = CandidateQueue(candidates, seed=run.seed)
    permits = asyncio.Semaphore(run.config.workers)
    rows: list[TaskRow] = []
    names: set[str] = set()

    async def one(candidate: Candidate) -> _Noticed | None:
        async with permits:
            return await _try(run, candidate)

    while len(rows) < wanted:
        batch = queue.take(min(_BATCH_PER_WORKER * run.config.workers, 2 * (wanted - len(rows))))
        if not batch:
            break
        for noticed in await asyncio.gather(*(one(candidate) for candidate in batch)):
            if noticed is not None and len(rows) < wanted:
                queue.keep(noticed.candidate)
                rows.append(await asyncio.to_thread(_make_row, run, noticed, split, names))
        run.progress(f"{split} tasks", done + len(rows), run.wanted)
    if len(rows) < wanted:
        run.progress(f"only {len(rows)} of {wanted} {split} tasks found", done + len(rows), run.wanted)
    return rows


async def _try(run: _Curation, candidate: Candidate) -> _Noticed | None:
    """Break and mend in one fresh sandbox; None when the tests do not notice, or not every time."""
    baseline = candidate.baseline
    command = driver_command(candidate.tests, baseline.source.roots)
    timeout = 5.0 + 10 * sum(baseline.seconds[test] for test in candidate.tests)
    spec = sandbox_spec(
        f"local:{baseline.image}",
        run.sandbox,
        run_id="curate",
        name=candidate.fault.function,
        lifetime_s=timeout * (run.config.stability_runs + 2) + 30,
    )
    path = f"{_WORKDIR}/{candidate.path}"
    try:
        async with run.backend.open(spec) as box:
            await box.write_file(path, candidate.mutated.encode())
            first = await run_tests(box, command, timeout_s=timeout)
            outcomes = first.outcomes(candidate.tests)
            failing = tuple(test for test, outcome in outcomes.items() if outcome is not TestOutcome.PASSED)
            reported = {TestOutcome.PASSED, TestOutcome.FAILED, TestOutcome.ERROR}
            if first.problem or not failing or not reported.issuperset(outcomes.values()):
                return None
            for _ in range(run.config.stability_runs - 1):
                again = await run_tests(box, command, timeout_s=timeout)
                if again.outcomes(candidate.tests) != outcomes:
                    return None
            await box.write_file(path, candidate.source.encode())
            mended = await run_tests(box, command, timeout_s=timeout)
            if mended.forged or set(mended.outcomes(candidate.tests).values()) != {TestOutcome.PASSED}:
                return None
    except SandboxError as error:
        # A mutant may exhaust its sandbox; it makes a poor task, not a failed curation.
        run.progress(f"dropped a candidate in {candidate.path}: {error}", 0, run.wanted)
        return None
    return _Noticed(
        candidate=candidate,
        failing=failing,
        passing=tuple(test for test in candidate.tests if test not in failing),
        exception=first.case(failing[0]).exception,
    )


def _make_row(run: _Curation, noticed: _Noticed, split: str, names: set[str]) -> TaskRow:
    candidate = noticed.candidate
    fault, source = candidate.fault, candidate.baseline.source
    gold = make_patch(candidate.path, candidate.mutated, candidate.source)
    stem = candidate.path.removesuffix(".py").removesuffix("/__init__").rsplit("/", 1)[-1]
    name = f"{source.name}__{stem}-{fault.line}"
    while name in names:
        name += "b"
    names.add(name)
    task = Task(
        id="",
        instance_id=name,
        repo=source.name,
        base_commit=source.revision,
        problem_statement=problem_statement(
            candidate.path,
            fault.function,
            fault.function_first_line,
            fault.function_last_line,
            [(fault.line, fault.mutated)],
            noticed.failing,
            noticed.exception,
            run.config.hint,
        ),
        image=f"local:{_build_task_image(run, candidate)}",
        workdir=_WORKDIR,
        difficulty={
            "function_lines": fault.function_last_line - fault.function_first_line + 1,
            "num_tests": len(candidate.tests),
            "num_fail_to_pass": len(noticed.failing),
            "patch_lines": count_changed_lines(gold),
            "num_candidates": candidate.num_faults,
        },
        metadata={"source": source.spec, "file": candidate.path, "function": fault.function},
    )
    answer = TaskAnswer(
        gold_patch=gold,
        fail_to_pass=noticed.failing,
        pass_to_pass=noticed.passing,
        test_command=driver_command(candidate.tests, source.roots),
        deterministic=True,
        metadata=_fault_record(candidate),
    )
    return with_content_id(TaskRow(task=task, answer=answer, split=split))


def _fault_record(candidate: Candidate) -> dict[str, Any]:
    fault = candidate.fault
    return {
        "kind": fault.kind,
        "family": fault.family,
        "path": candidate.path,
        "line": fault.line,
        "original": fault.original,
        "mutated": fault.mutated,
    }


def _build_task_image(run: _Curation, candidate: Candidate) -> str:
    """Image whose tree holds the fault; its name tells its content."""
    baseline = candidate.baseline
    digest = hashlib.sha256(repr((baseline.image, candidate.path, candidate.mutated)).encode()).hexdigest()
    name = f"{baseline.source.name}-{digest[:12]}"
    if image_exists(run.home, name):
        return name
    staging = Path(tempfile.mkdtemp(prefix=".task-", dir=run.home))
    try:
        tree = staging / "tree"
        shutil.copytree(baseline.source.tree, tree, copy_function=os.link)
        broken = tree / candidate.path
        broken.unlink()  # it is a link to the intact file
        broken.write_text(candidate.mutated, encoding="utf-8", newline="")
        build_image(
            run.home,
            name,
            tree,
            workdir=_WORKDIR,
            env=image_environment(baseline.source),
            binds={MOUNT: str(baseline.toolchain)},
        )
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return name


async def _extra_rows(run: _Curation, skipped: dict[str, str]) -> list[TaskRow]:
    rows = []
    for name in run.config.extra_tasks:
        try:
            rows.append(await asyncio.to_thread(handwritten.build_task, name, run.home))
        except PreflightError as error:
            skipped[name] = str(error)
            run.progress(f"skipped {name}: {error}", run.wanted, run.wanted)
    return rows
