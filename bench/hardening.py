"""Hardened tasks and honest solutions: ``python -m bench.hardening --home FOLDER [--tasks N] DATASET…``.

Hardens the first tasks of datasets, without any alternative, and counts how many are weak and hardened, and
what the added tests compare. Then grades equivalent rewrites of each hardened task's solution: those that
pass the task's own tests must pass the added ones. Bar: at most 1 % are rejected.
Tasks that are not hardened keep their tests, and so reject none; their rewrites are not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness import store
from bench.honest_rewrites import rewrites
from engine.config.hardening import HardeningConfig
from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.store import load_dataset
from engine.errors import TrainyardError
from engine.grading.grader import Grader
from engine.grading.hardening.harden import Hardener
from engine.grading.hardening.trial import Hardening, hardened_row
from engine.grading.strength import files_before
from engine.sandbox.local.backend import LocalBackend
from engine.types import TaskRow, Verdict

SANDBOX = SandboxConfig(memory_mb=1024)
_RUN = "bench"


@dataclass(frozen=True, slots=True)
class Hardened:
    """Result of one task; ``rewrites`` has kind → whether the hardened task accepts it."""

    task: str
    result: Hardening
    rewrites: dict[str, bool] = field(default_factory=dict)


class Bench:
    """Hardens tasks and grades rewrites of their solutions.

    Args:
        home: the data folder.
        workers: number of tasks at once.
        wrong_patches: maximum number for each task.
    """

    def __init__(self, home: Path, *, workers: int, wrong_patches: int) -> None:
        config = HardeningConfig(dataset="any", output="other", workers=workers, wrong_patches=wrong_patches)
        self._backend = LocalBackend(home)
        self._hardener = Hardener(config, backend=self._backend, sandbox=SANDBOX, run_id=_RUN)
        grading = GradingConfig(timeout_s=60.0, max_parallel=workers, counterfactual="off")
        self._grader = Grader(backend=self._backend, config=grading, sandbox=SANDBOX, run_id=_RUN)
        self._tasks = asyncio.Semaphore(workers)

    async def harden(self, row: TaskRow) -> Hardened:
        """Harden a task and grade the rewrites of its solution."""
        async with self._tasks:
            began = time.monotonic()
            try:
                result = await self._hardener.harden(row)
                accepted = {} if result.reason else await self._accepted(row, hardened_row(row, result))
            except TrainyardError as error:
                result, accepted = Hardening(reason="error", detail=str(error)[:300]), {}
            result = result.model_copy(update={"seconds": round(time.monotonic() - began, 1)})
            print(f"{row.task.instance_id:50} {result.reason or 'hardened':16} {accepted}", flush=True)
            return Hardened(row.task.instance_id, result, accepted)

    async def _accepted(self, row: TaskRow, hardened: TaskRow) -> dict[str, bool]:
        """Return kind → whether the hardened task accepts a rewrite that passes the task's own tests."""
        before = await files_before(
            row, row.answer.gold_patch, backend=self._backend, sandbox=SANDBOX, run_id=_RUN
        )
        made = await asyncio.to_thread(rewrites, row, before)
        return {
            each.kind: await self._passes(hardened, each.patch)
            for each in made
            if await self._passes(row, each.patch)
        }

    async def _passes(self, row: TaskRow, patch: str) -> bool:
        return (await self._grader.grade(row, patch, trusted=True)).verdict is Verdict.PASSED


async def measure(home: Path, datasets: list[str], *, tasks: int, workers: int, wrong_patches: int) -> Any:
    """Return the counts over the first tasks of the datasets."""
    rows = [row for name in datasets for row in load_dataset(home, name).rows][:tasks]
    bench = Bench(home, workers=workers, wrong_patches=wrong_patches)
    results = await asyncio.gather(*map(bench.harden, rows))
    hardened = [item for item in results if not item.result.reason]
    verdicts = [(kind, passed) for item in hardened for kind, passed in item.rewrites.items()]
    return {
        "tasks": len(rows),
        "hardened": len(hardened),
        "not_hardened": dict(Counter(item.result.reason for item in results if item.result.reason)),
        "tests_added": sum(len(item.result.tests) for item in hardened),
        "tests_that_compare": dict(_compared(hardened)),
        "wrong_patches": sum(item.result.wrong_patches for item in results),
        "rejected_before": sum(item.result.rejected_before for item in results),
        "rejected_after": sum(item.result.rejected_after for item in results),
        "seconds_a_task": round(sum(item.result.seconds for item in results) / max(1, len(results)), 1),
        "rewrites": dict(Counter(kind for kind, _ in verdicts)),
        "rejected_rewrites": [
            f"{item.task}: {kind}"
            for item in hardened
            for kind, passed in item.rewrites.items()
            if not passed
        ],
        "share_rejected": round(sum(not passed for _, passed in verdicts) / max(1, len(verdicts)), 4),
    }


def _compared(hardened: list[Hardened]) -> Counter[str]:
    """Return what the added tests compare, by the text of each."""
    kinds: Counter[str] = Counter()
    for test in (test for item in hardened for test in item.result.text.split("\n\n\ndef ")[1:]):
        if "pytest.raises" in test:
            kinds["exceptions"] += 1
        elif re.search(r"assert (repr\(|value\.\w+ )", test):
            kinds["descriptions"] += 1
        else:
            kinds["results of methods" if "    value = " in test else "results of functions"] += 1
    return kinds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("datasets", nargs="*", metavar="DATASET")
    parser.add_argument("--home", type=Path, default=Path(".trainyard"))
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--wrong-patches", type=int, default=24)
    parser.add_argument("--quick", action="store_true", help="ten tasks; nothing is stored")
    options = parser.parse_args()
    tasks = 10 if options.quick else options.tasks
    counts = asyncio.run(
        measure(
            options.home.resolve(),
            options.datasets,
            tasks=tasks,
            workers=options.workers,
            wrong_patches=options.wrong_patches,
        )
    )
    for name, value in counts.items():
        print(f"{name.replace('_', ' '):28} {value}")
    store("hardening", counts, quick=options.quick or not options.datasets)


if __name__ == "__main__":
    main()
