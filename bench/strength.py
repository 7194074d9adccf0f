"""Planted weak tests: ``python -m bench.strength --home FOLDER [--tasks N] [--quick] DATASET…``.

For tasks with hidden test files, as curation from commits makes them, one assertion of a test that the
solution fixes is removed, so that the task still fails untouched and passes solved. Such a task counts if it
is weaker in truth: of 48 wrong patches, one passes its tests and not the original ones. It is found if
its strength, measured as in a validation by the first 24 of them, is below the original's. Bar: 95 %.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness import store
from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.store import load_dataset
from engine.datasets.wrong_patches import WrongPatch
from engine.errors import TrainyardError
from engine.grading.grader import Grader
from engine.grading.strength import choose_wrong_patches
from engine.sandbox.local.backend import LocalBackend
from engine.types import TaskRow, Verdict

POOL, MEASURED = 48, 24
TRIES = 3
"""Assertions of a task that are tried, until one makes it weaker."""
SANDBOX = SandboxConfig(memory_mb=1024)


@dataclass(frozen=True, slots=True)
class Planted:
    """A task with a weaker test: what the wrong patches say about it."""

    task: str
    weaker: bool
    found: bool
    measured: int
    seconds: float


class Bench:
    """Grading of wrong patches by original and weakened tests."""

    def __init__(self, home: Path, workers: int) -> None:
        self._backend = LocalBackend(home)
        self._grader = Grader(
            backend=self._backend,
            config=GradingConfig(timeout_s=60.0, max_parallel=workers, counterfactual="off"),
            sandbox=SANDBOX,
            run_id="bench",
        )
        self._tasks = asyncio.Semaphore(workers)

    async def plant(self, row: TaskRow) -> Planted | None:
        """Return a task with one assertion less, the first that is weaker; None if no assertion can go."""
        async with self._tasks:
            try:
                return await self._plant(row)
            except TrainyardError as error:
                print(f"{row.task.instance_id}: {error}"[:200])
                return None

    async def _plant(self, row: TaskRow) -> Planted | None:
        began, planted, rejected = time.monotonic(), None, list[bool]()
        patches: list[WrongPatch] = []
        for files in list(weaker_files(row))[:TRIES]:
            weak = replace(row, answer=replace(row.answer, test_files={**row.answer.test_files, **files}))
            if await self._passes(weak, "") or not await self._passes(weak, row.answer.gold_patch):
                continue
            if not patches:
                patches = await choose_wrong_patches(
                    row,
                    row.answer.gold_patch,
                    (),
                    limit=POOL,
                    backend=self._backend,
                    sandbox=SANDBOX,
                    run_id="bench",
                )
                rejected = [not await self._passes(row, wrong.patch) for wrong in patches]
            slipped = [
                was_rejected and await self._passes(weak, wrong.patch)
                for wrong, was_rejected in zip(patches, rejected, strict=True)
            ]
            planted = Planted(
                task=row.task.instance_id,
                weaker=any(slipped),
                found=any(slipped[:MEASURED]),
                measured=len(patches[:MEASURED]),
                seconds=round(time.monotonic() - began, 1),
            )
            if planted.weaker:
                break
        return planted

    async def _passes(self, row: TaskRow, patch: str) -> bool:
        return (await self._grader.grade(row, patch, trusted=True)).verdict is Verdict.PASSED


def weaker_files(row: TaskRow) -> Iterator[dict[str, str]]:
    """Yield path → text of a test file without one assertion of a test that the solution fixes."""
    draw = random.Random(row.task.instance_id)
    places = [
        (path, node)
        for path, text in sorted(row.answer.test_files.items())
        for test in _tests(text, {name for name in row.answer.fail_to_pass if name.startswith(f"{path}::")})
        for node in _removable(test)
    ]
    for path, node in draw.sample(places, len(places)):
        lines = row.answer.test_files[path].split("\n")
        indent = lines[node.lineno - 1][: node.col_offset]
        lines[node.lineno - 1 : node.end_lineno] = [f"{indent}pass"]
        yield {path: "\n".join(lines)}


def _tests(text: str, names: set[str]) -> Iterator[ast.AST]:
    functions = {name.partition("[")[0].rpartition("::")[2] for name in names}
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in functions:
            yield node


def _removable(test: ast.AST) -> list[ast.stmt]:
    """Return the assertions of a test that has several."""
    found = [node for node in ast.walk(test) if isinstance(node, ast.stmt) and _is_assertion(node)]
    return found if len(found) > 1 else []


def _is_assertion(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assert):
        return True
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and getattr(call.func, "attr", "").startswith("assert")


async def measure(home: Path, datasets: list[str], *, tasks: int, workers: int) -> dict[str, Any]:
    """Return the counts over the first tasks of the datasets."""
    rows = [row for name in datasets for row in load_dataset(home, name).rows][:tasks]
    bench = Bench(home, workers)
    planted = [item for item in await asyncio.gather(*map(bench.plant, rows)) if item is not None]
    weaker = [item for item in planted if item.weaker]
    counts = Counter(item.found for item in weaker)
    return {
        "tasks": len(rows),
        "with_a_removable_assertion": len(planted),
        "weaker": len(weaker),
        "found": counts[True],
        "share": round(counts[True] / len(weaker), 3) if weaker else None,
        "missed": [item.task for item in weaker if not item.found],
        "wrong_patches": sum(item.measured for item in planted),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("datasets", nargs="*", metavar="DATASET")
    parser.add_argument("--home", type=Path, default=Path(".trainyard"))
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="ten tasks; nothing is stored")
    arguments = parser.parse_args()
    tasks = 10 if arguments.quick else arguments.tasks
    run = partial(measure, arguments.home, arguments.datasets, tasks=tasks, workers=arguments.workers)
    found = asyncio.run(run())
    for name, value in found.items():
        print(f"{name.replace('_', ' '):28} {value}")
    store("strength", found, quick=arguments.quick or not arguments.datasets)


if __name__ == "__main__":
    main()
