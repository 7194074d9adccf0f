"""Hardened tasks and honest solutions: ``python -m bench.hardening --home FOLDER [--planted] DATASET…``.

Hardens the first tasks of datasets, without any alternative, and counts how many are weak and hardened, and
what the added tests compare. Then grades equivalent rewrites of each hardened task's solution: those that
pass the task's own tests must pass the added ones. Bar: at most 1 % are rejected.
Tasks that are not hardened keep their tests, and so reject none; their rewrites are not counted.

A wrong patch that passes may behave as the solution does: no test can reject it, and its task only looks
weak. ``--planted`` removes all assertions but one from each test that the solution fixes, as far as the task
then still fails untouched. Such a task counts as weak if its original tests reject a patch that now passes.
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

from bench.harness import machine, store, tasks_in_turn
from bench.honest_rewrites import rewrites
from bench.strength import removable_assertions, weakened
from engine.config.hardening import HardeningConfig
from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.errors import TrainyardError
from engine.grading.grader import Grader
from engine.grading.hardening.harden import Hardener
from engine.grading.hardening.trial import Hardening, hardened_row
from engine.grading.strength import choose_wrong_patches, files_before
from engine.sandbox.local.backend import LocalBackend
from engine.types import TaskRow, Verdict

SANDBOX = SandboxConfig(memory_mb=1024)
_RUN = "bench"


@dataclass(frozen=True, slots=True)
class Hardened:
    """Result of one task.

    Attributes:
        task: its instance id.
        result: its hardening.
        weak: number of patches that are wrong and pass its tests.
        rewrites: kind → whether the hardened task accepts it.
    """

    task: str
    result: Hardening
    weak: int = 0
    rewrites: dict[str, bool] = field(default_factory=dict)


class Bench:
    """Hardens tasks and grades rewrites of their solutions.

    Args:
        home: the data folder.
        workers: number of tasks at once.
        wrong_patches: maximum number for each task.
        planted: make the tasks weak.
    """

    def __init__(self, home: Path, *, workers: int, wrong_patches: int, planted: bool) -> None:
        self._wrong_patches, self._planted = wrong_patches, planted
        config = HardeningConfig(dataset="any", output="other", workers=workers, wrong_patches=wrong_patches)
        self._backend = LocalBackend(home)
        self._hardener = Hardener(config, backend=self._backend, sandbox=SANDBOX, run_id=_RUN)
        grading = GradingConfig(timeout_s=60.0, max_parallel=workers, counterfactual="off")
        self._grader = Grader(backend=self._backend, config=grading, sandbox=SANDBOX, run_id=_RUN)
        self._tasks = asyncio.Semaphore(workers)

    async def harden(self, row: TaskRow) -> Hardened | None:
        """Harden a task and grade the rewrites of its solution; None if it cannot be made weak."""
        async with self._tasks:
            began, weak, accepted = time.monotonic(), row, dict[str, bool]()
            try:
                if self._planted:
                    weak = _weak(row)
                    if weak is row or await self._passes(weak, ""):
                        return None
                result = await self._hardener.harden(weak)
                wrong = await self._number_wrong(row, result)
                if not result.reason:
                    accepted = await self._accepted(weak, hardened_row(weak, result))
            except TrainyardError as error:
                result, wrong = Hardening(reason="error", detail=str(error)[:300]), 0
            result = result.model_copy(update={"seconds": round(time.monotonic() - began, 1)})
            said = f"{result.reason or 'hardened':16} {wrong:2} wrong of {len(result.passed):2} that pass"
            print(f"{row.task.instance_id:24} {said} {accepted}", flush=True)
            return Hardened(row.task.instance_id, result, wrong, accepted)

    async def _number_wrong(self, row: TaskRow, result: Hardening) -> int:
        """Return the number of the patches that passed which the original task rejects."""
        if not self._planted or not result.passed:
            return len(result.passed)
        solution = row.answer.gold_patch
        patches = await choose_wrong_patches(
            row, solution, (), limit=self._wrong_patches, backend=self._backend, sandbox=SANDBOX, run_id=_RUN
        )
        passed = [each.patch for each in patches if each.detail in result.passed]
        return sum([not await self._passes(row, patch) for patch in passed])

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


async def measure(bench: Bench, rows: list[TaskRow]) -> dict[str, Any]:
    """Return the counts over tasks."""
    results = [item for item in await asyncio.gather(*map(bench.harden, rows)) if item is not None]
    hardened = [item for item in results if not item.result.reason]
    verdicts = [(kind, passed) for item in hardened for kind, passed in item.rewrites.items()]
    weak = [item for item in results if item.weak]
    weak_hardened = [item for item in weak if not item.result.reason]
    return {
        "tasks": len(results),
        "weak": len(weak),
        "hardened": len(weak_hardened),
        "share_hardened": round(len(weak_hardened) / max(1, len(weak)), 3),
        "not_hardened": dict(Counter(item.result.reason for item in weak if item.result.reason)),
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


def _weak(row: TaskRow) -> TaskRow:
    """Return a task with one assertion in each test that the solution fixes; itself if none has several."""
    assertions = removable_assertions(row)
    kept = {each.test: each for each in assertions}
    removed = [each for each in assertions if each is not kept[each.test]]
    return weakened(row, removed) if removed else row


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
    parser.add_argument("--planted", action="store_true", help="remove assertions from the tasks' tests")
    parser.add_argument("--quick", action="store_true", help="ten tasks; nothing is stored")
    options = parser.parse_args()
    home = options.home.resolve()
    bench = Bench(home, workers=options.workers, wrong_patches=options.wrong_patches, planted=options.planted)
    rows = tasks_in_turn(home, options.datasets, 10 if options.quick else options.tasks)
    counts = {**machine(), "planted": options.planted, **asyncio.run(measure(bench, rows))}
    for name, value in counts.items():
        print(f"{name.replace('_', ' '):28} {value}")
    store("hardening", counts, quick=options.quick or not options.datasets)


if __name__ == "__main__":
    main()
