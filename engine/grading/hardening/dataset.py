"""Hardening of a dataset: a new version in which weak tasks have additional tests.

Results are kept (``kept_hardenings``): a run that was stopped or killed continues with them.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from engine.config.hardening import HardeningConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.funnel import Funnel, NoTasksError, Progress, Stages, reporting
from engine.datasets.health import row_content
from engine.datasets.kept_results import KeptResults
from engine.datasets.replaced import RowIdentity
from engine.datasets.store import Dataset, load_dataset, save_dataset
from engine.errors import HostError, SandboxError, describe_error
from engine.grading.grader import GRADER_VERSION
from engine.grading.hardening.harden import Hardener
from engine.grading.hardening.trial import Hardening, hardened_row
from engine.sandbox.base import SandboxBackend
from engine.threads import gather_or_cancel
from engine.types import TaskRow

log = structlog.get_logger(__name__)
STAGES: Stages = (
    ("tasks", frozenset()),
    ("weak", frozenset({
        "waiting", "other_runner", "no_solution", "gold_fails", "no_wrong_patches", "strong", "sandbox",
        "error",
    })),
    ("calls recorded", frozenset({"nothing_recorded"})),
    ("tests made", frozenset({"not_repeatable"})),
    ("wrong patches caught", frozenset({"not_caught"})),
    ("gold passes", frozenset({"gold"})),
    ("alternatives pass", frozenset({"alternatives"})),
    ("hardened", frozenset({"not_confirmed"})),
)  # fmt: skip
"""Stages of the funnel."""
LOST = frozenset({"sandbox", "error"})
"""Reasons that may be this machine's: these tasks are tried again by the next run."""
_PHASE = "hardening tasks"
_VERSION = 4
"""Raise it when the result of the same task may change."""


def kept_hardenings(
    home: Path, config: HardeningConfig, sandbox: SandboxConfig, seed: int
) -> KeptResults[Hardening]:
    """Return the results of a dataset's tasks by earlier runs, under ``home/hardening``.

    Args:
        home: the data folder.
        config: settings on which results depend.
        sandbox: limits of the test runs.
        seed: of the order of tests.
    """
    settings = (config.wrong_patches, config.max_tests, config.test_timeout_s, seed)
    content = repr((_VERSION, GRADER_VERSION, settings, sorted(sandbox.limits().items())))
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return KeptResults(home / "hardening" / f"{config.dataset}-{digest}.jsonl", Hardening)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Hardening of single tasks, with kept results and honest alternatives."""

    hardener: Hardener
    earlier: KeptResults[Hardening]
    alternatives: Mapping[tuple[str, str], Sequence[str]]

    def kept(self, row: TaskRow) -> Hardening | None:
        """Return the result of an earlier run; None if there is none."""
        return self.earlier.get(self._key(row))

    def _key(self, row: TaskRow) -> str:
        content = repr((row_content(row), *self._patches(row)))
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    def _patches(self, row: TaskRow) -> Sequence[str]:
        return self.alternatives.get(RowIdentity.of(row).start, ())

    async def result(self, row: TaskRow) -> Hardening:
        """Harden a task and keep the result."""
        started = time.monotonic()
        try:
            result = await self.hardener.harden(row, self._patches(row))
        except HostError:
            raise
        except SandboxError as error:
            result = Hardening(reason="sandbox", detail=str(error)[:500])
        except Exception as error:  # one odd task must not end the run
            log.exception("task_not_hardened", instance_id=row.task.instance_id)
            result = Hardening(reason="error", detail=describe_error(error)[:500])
        result = result.model_copy(update={"seconds": round(time.monotonic() - started, 2)})
        if result.reason not in LOST:
            self.earlier.keep(self._key(row), result)
        return result


async def harden_dataset(
    config: HardeningConfig,
    *,
    home: Path,
    backend: SandboxBackend,
    sandbox: SandboxConfig,
    progress: Progress,
    alternatives: Mapping[tuple[str, str], Sequence[str]] | None = None,
    run_id: str = "harden",
    seed: int = 0,
) -> Dataset:
    """Harden the tasks of ``config.dataset``, save them as ``config.output`` and return it.

    Tasks that cannot be hardened stay as they are, with the reason in the provenance.

    Args:
        config: the datasets, numbers of wrong patches and tests.
        home: the data folder.
        backend: the sandboxes in which tests run.
        sandbox: their limits.
        progress: receives a report a second at most, with the tasks done and all tasks.
        alternatives: patches of honest solutions, by ``RowIdentity.start`` of their tasks.
        run_id: the run that owns the sandboxes.
        seed: of the order of tests.

    Raises:
        DatasetError: the dataset cannot be read.
        NoTasksError: no task of it was hardened.
        HostError: this machine fails.
    """
    started = time.monotonic()
    dataset = await asyncio.to_thread(load_dataset, home, config.dataset)
    hardener = Hardener(config, backend=backend, sandbox=sandbox, run_id=run_id, seed=seed)
    earlier = await asyncio.to_thread(kept_hardenings, home, config, sandbox, seed)
    work = _Work(hardener=hardener, earlier=earlier, alternatives=alternatives or {})
    funnel = Funnel(stages=STAGES, total=len(dataset.rows), candidates=len(dataset.rows))
    results = await _results(work, dataset.rows, config.workers, funnel, progress)
    rows = [
        row if result.reason else hardened_row(row, result)
        for row, result in zip(dataset.rows, results, strict=True)
    ]
    record = {
        "config": config.model_dump(mode="json"),
        "seed": seed,
        "hardened_from": config.dataset,
        "original": dict(dataset.provenance),
        "licences": dataset.provenance.get("licences", {}),
        **funnel.snapshot().model_dump(mode="json"),
        "tests_added": sum(len(result.tests) for result in results),
        "wrong_patches": sum(result.wrong_patches for result in results),
        "rejected_before": sum(result.rejected_before for result in results),
        "rejected_after": sum(result.rejected_after for result in results),
        "seconds": round(time.monotonic() - started, 1),
    }
    if not funnel.tasks:
        lost = next((result.detail for result in results if result.reason in LOST), "")
        raise NoTasksError(f"no task of '{config.dataset}' was hardened", record, detail=lost)
    return await asyncio.to_thread(save_dataset, home, config.output, rows, record)


async def _results(
    work: _Work, rows: Sequence[TaskRow], workers: int, funnel: Funnel, progress: Progress
) -> list[Hardening]:
    """Harden all rows, at most ``workers`` at once; if one raises, cancel the others."""
    permits = asyncio.Semaphore(workers)
    known = await asyncio.to_thread(lambda: [work.kept(row) for row in rows])
    results: dict[int, Hardening] = {}

    def count(number: int, result: Hardening) -> None:
        results[number] = result
        funnel.tried += 1
        funnel.trial_seconds += result.seconds
        if result.reason:
            name = rows[number].task.instance_id
            funnel.lose(result.reason, name, detail=result.detail, position=number)
        else:
            funnel.proven += 1
            funnel.tasks += 1

    def amounts() -> tuple[int, int]:
        return funnel.tried, len(rows)

    async def handle(number: int, row: TaskRow) -> None:
        async with permits:
            count(number, await work.result(row))

    for number, kept in enumerate(known):
        if kept is not None:
            count(number, kept)
    left = [number for number in range(len(rows)) if number not in results]
    funnel.is_live = True
    progress(_PHASE, *amounts(), funnel=funnel.snapshot())
    async with reporting(funnel, progress, _PHASE, amounts):
        await gather_or_cancel(handle(number, rows[number]) for number in left)
    progress(_PHASE, *amounts(), funnel=funnel.snapshot())
    return [results[number] for number in range(len(rows))]
