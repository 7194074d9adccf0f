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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.harness import machine, store, tasks_in_turn
from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.store import with_content_id
from engine.errors import TrainyardError
from engine.grading.grader import Grader
from engine.grading.strength import choose_wrong_patches
from engine.sandbox.local.backend import LocalBackend
from engine.types import TaskRow, TestOutcome, Verdict

POOL, MEASURED = 48, 24
TRIES = 6
"""Assertions of a task that are tried, until one makes it weaker."""
SANDBOX = SandboxConfig(memory_mb=1024)


@dataclass(frozen=True, slots=True)
class Planted:
    """A task that is weaker with one assertion less.

    Attributes:
        task: its instance id.
        found: whether a wrong patch that the assertion rejects is among those that a validation grades.
        measured: number of these.
    """

    task: str
    found: bool
    measured: int


class Bench:
    """Grading of wrong patches by original and weakened tests.

    Args:
        home: the data folder.
        workers: number of tasks at once.
    """

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
        """Return a task with one assertion less, the first that makes it weaker; None if none does."""
        async with self._tasks:
            began = time.monotonic()
            try:
                planted = await self._plant(row)
            except TrainyardError as error:
                print(f"{row.task.instance_id}: {error}"[:200], flush=True)
                return None
            said = "not weaker" if planted is None else "found" if planted.found else "missed"
            print(f"{row.task.instance_id:50} {said:12} {time.monotonic() - began:6.0f} s", flush=True)
            return planted

    async def _plant(self, row: TaskRow) -> Planted | None:
        assertions = removable_assertions(row)
        if not assertions:
            return None
        patches = await choose_wrong_patches(
            row,
            row.answer.gold_patch,
            (),
            limit=POOL,
            backend=self._backend,
            sandbox=SANDBOX,
            run_id="bench",
        )
        failed = [await self._failed_tests(row, wrong.patch) for wrong in patches]
        tries = 0
        for assertion in assertions:
            # Only a patch that fails in no other test may pass without the assertion.
            able = [number for number, tests in enumerate(failed) if tests == {assertion.test}]
            weak = weakened(row, [assertion])
            if not able or tries == TRIES or await self._passes(weak, ""):
                continue
            tries += 1
            slipped = [number for number in able if await self._passes(weak, patches[number].patch)]
            if slipped and await self._passes(weak, row.answer.gold_patch):
                return Planted(row.task.instance_id, min(slipped) < MEASURED, min(len(patches), MEASURED))
        return None

    async def _passes(self, row: TaskRow, patch: str) -> bool:
        return (await self._grader.grade(row, patch, trusted=True)).verdict is Verdict.PASSED

    async def _failed_tests(self, row: TaskRow, patch: str) -> set[str]:
        """Return the required test functions that do not pass, without parameters; all after a time-out."""
        grade = await self._grader.grade(row, patch, trusted=True)
        passed = {test.test_id for test in grade.tests if test.outcome is TestOutcome.PASSED}
        required = {*row.answer.fail_to_pass, *row.answer.pass_to_pass}
        failed = required if grade.verdict is Verdict.TEST_TIMEOUT else required - passed
        return {test.partition("[")[0] for test in failed}


@dataclass(frozen=True, slots=True)
class Assertion:
    """An assertion of a test that the solution fixes; ``test``: node id without parameters."""

    test: str
    line: int
    last_line: int
    column: int


def removable_assertions(row: TaskRow) -> list[Assertion]:
    """Return the assertions of tests with several that the solution fixes, in a random order."""
    assertions = []
    for test in sorted({test.partition("[")[0] for test in row.answer.fail_to_pass}):
        path, _, names = test.partition("::")
        text = row.answer.test_files.get(path, "")
        for node in _removable(_function(text, names.split("::"))):
            last = node.end_lineno or node.lineno
            assertions.append(Assertion(test, node.lineno, last, node.col_offset))
    random.Random(row.task.instance_id).shuffle(assertions)
    return assertions


def weakened(row: TaskRow, removed: Sequence[Assertion]) -> TaskRow:
    """Return a task without some assertions."""
    files = dict(row.answer.test_files)
    for each in sorted(removed, key=lambda each: -each.line):
        path = each.test.partition("::")[0]
        lines = files[path].split("\n")
        lines[each.line - 1 : each.last_line] = [lines[each.line - 1][: each.column] + "pass"]
        files[path] = "\n".join(lines)
    return with_content_id(replace(row, answer=replace(row.answer, test_files=files)))


def _function(text: str, names: Sequence[str]) -> ast.AST | None:
    """Return the function of a test file that a node id names; None if the file has none."""
    try:
        scope: ast.AST | None = ast.parse(text)
    except SyntaxError:
        return None
    for name in names:
        inner = [node for node in getattr(scope, "body", ()) if getattr(node, "name", "") == name]
        scope = inner[-1] if inner else None
    return scope


def _removable(test: ast.AST | None) -> list[ast.stmt]:
    """Return the assertions of a test that has several."""
    nodes = [] if test is None else list(ast.walk(test))
    assertions = [node for node in nodes if isinstance(node, ast.stmt) and _is_assertion(node)]
    return assertions if len(assertions) > 1 else []


def _is_assertion(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assert):
        return True
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and getattr(call.func, "attr", "").startswith("assert")


async def measure(home: Path, datasets: list[str], *, tasks: int, workers: int) -> dict[str, Any]:
    """Return the counts over the first tasks of the datasets."""
    rows = tasks_in_turn(home, datasets, tasks)
    bench = Bench(home, workers)
    weaker = [each for each in await asyncio.gather(*map(bench.plant, rows)) if each is not None]
    missed = [each.task for each in weaker if not each.found]
    return {
        "tasks": len(rows),
        "with_a_removable_assertion": sum(bool(removable_assertions(row)) for row in rows),
        "weaker": len(weaker),
        "found": len(weaker) - len(missed),
        "share": round(1 - len(missed) / len(weaker), 3) if weaker else None,
        "missed": missed,
        "wrong_patches": sum(each.measured for each in weaker),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("datasets", nargs="*", metavar="DATASET")
    parser.add_argument("--home", type=Path, default=Path(".trainyard"))
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="ten tasks; nothing is stored")
    options = parser.parse_args()
    run = measure(
        options.home.resolve(),
        options.datasets,
        tasks=10 if options.quick else options.tasks,
        workers=options.workers,
    )
    counts = {**machine(), **asyncio.run(run)}
    for name, value in counts.items():
        print(f"{name.replace('_', ' '):28} {value}")
    store("strength", counts, quick=options.quick or not options.datasets)


if __name__ == "__main__":
    main()
