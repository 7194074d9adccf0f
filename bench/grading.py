"""Gradings per second per core, and the time of audits with mutated tests, by kind of row.

The toy task as a row of three kinds: graded by the driver's signed report (quickstart), by a script that
applies a test patch before its markers (SWE-bench), by one without test patch and ``pytest -v`` (SWE-smith).
References are made first; their time is measured separately. Then a fix, which passes, and an empty patch,
which fails, are graded alternately in each mode. The baseline of all ratios is ``off``: one plain run.
Run: ``python -m bench.grading [--quick] [--gradings N]``; results go to ``bench/results/grading.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from bench.harness import store
from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.importers.formats.evalscript import make_script
from engine.grading.counterfactual.audit import Audits
from engine.grading.counterfactual.prover import Prover
from engine.grading.execution import RunExecutor
from engine.grading.grader import Grader
from engine.patches.diff import diff_texts
from engine.sandbox.local.backend import LocalBackend
from engine.testing.toolchain import MOUNT
from engine.types import TaskRow, Verdict
from tests.builders.dataset_builders import (
    NUMBERS,
    TEST_NUMBERS,
    MemoryStore,
    broken_task,
    patched,
    toolchain_or_skip,
    without_reuse,
    write_toy,
)

SANDBOX = SandboxConfig(memory_mb=256)
CPUS = os.cpu_count() or 1
TIMEOUT_S = 120.0
Mode = Literal["off", "sample", "always"]
FILE = "tests/test_numbers.py"
PYTEST = f"PYTHONPATH={MOUNT} python3 -m pytest -c {MOUNT}/pytest.ini --rootdir=/testbed -p no:cacheprovider"
NEW_TEST = "\n\ndef test_clamp_within():\n    assert clamp(7, 0, 10) == 7\n"
FIX = patched(NUMBERS + "\n# not as the gold patch has it, which is not audited\n")
PLAIN = "one plain run"
"""Baseline of all ratios: the tests in a fresh sandbox only."""
MODES = (PLAIN, "not audited", "audited", "evaluation")
Graded = Callable[[], Awaitable[Verdict]]
"""Grades a patch once."""


def rows(home: Path) -> dict[str, TaskRow]:
    """Return the toy's task as a row of each kind."""
    row = without_reuse(broken_task(home, write_toy(home / "source")))
    patch = diff_texts(FILE, TEST_NUMBERS, TEST_NUMBERS + NEW_TEST)
    answer, script = row.answer, partial(make_script, workdir=row.task.workdir, base_commit="")
    as_bench = replace(
        answer,
        test_patch=patch,
        test_command=script(test_patch=patch, test=[f"{PYTEST} -rA {FILE}"]),
        log_parser="parse_log_pytest",
        fail_to_pass=(f"{FILE}::test_clamp_within", *answer.fail_to_pass),
    )
    as_smith = replace(
        answer,
        test_command=script(test_patch="", test=[f"{PYTEST} --verbose --tb=no {FILE}"]),
        log_parser="swesmith_pytest",
    )
    return {
        "quickstart": row,
        "SWE-bench": replace(row, answer=as_bench),
        "SWE-smith": replace(row, answer=as_smith),
    }


async def measure(home: Path, row: TaskRow, gradings: int, rounds: int) -> dict[str, Any]:
    """Measure one kind of row."""
    backend = LocalBackend(home)
    prover = Prover(
        backend=backend, config=GradingConfig(timeout_s=TIMEOUT_S), sandbox=SANDBOX, run_id="bench"
    )
    began = time.perf_counter()
    reference = await prover(row)
    results: dict[str, Any] = {
        "proof_seconds": round(time.perf_counter() - began, 3),
        "variants": len(reference.variants),
    }
    for label, patch, verdict in (
        ("passing", FIX, Verdict.PASSED),
        ("failing", "", Verdict.FAILED),
    ):
        by_mode = await modes(backend, row, patch, MemoryStore((row, reference)))
        rates: dict[str, list[float]] = {mode: [] for mode in MODES}
        for _ in range(rounds):  # alternately, so that changes of the machine's load affect all
            for mode, grade in by_mode.items():
                began = time.perf_counter()
                verdicts = await asyncio.gather(*(grade() for _ in range(gradings)))
                assert set(verdicts) == {verdict}, f"{label} patch, {mode}: {verdicts}"
                rates[mode].append(gradings / (time.perf_counter() - began) / CPUS)
        per_core = {mode: statistics.median(values) for mode, values in rates.items()}
        results[label] = {
            "gradings_per_second_per_core": {mode: round(rate, 3) for mode, rate in per_core.items()},
            "time_ratio": {mode: round(per_core[PLAIN] / rate, 2) for mode, rate in per_core.items()},
        }
    return results


async def modes(backend: LocalBackend, row: TaskRow, patch: str, store: MemoryStore) -> dict[str, Graded]:
    """Return the function that grades a patch, by mode."""
    runs = RunExecutor(backend=backend, config=GradingConfig(), sandbox=SANDBOX, run_id="bench")
    permits = asyncio.Semaphore(CPUS)

    async def plain() -> Verdict:
        async with permits:
            return (await runs.execute(row, patch, timeout_s=TIMEOUT_S)).verdict

    def graded(mode: Mode, *, run_id: str = "bench", evaluation: bool = False) -> Graded:
        config = GradingConfig(timeout_s=TIMEOUT_S, max_parallel=CPUS, counterfactual=mode)
        grader = Grader(backend=backend, config=config, sandbox=SANDBOX, run_id=run_id, store=store)

        async def grade() -> Verdict:
            return (await grader.grade(row, patch, evaluation=evaluation)).verdict

        return grade

    unsampled = await _unsampled(row, patch)
    graders = (plain, graded("sample", run_id=unsampled), graded("always"), graded("sample", evaluation=True))
    return dict(zip(MODES, graders, strict=True))


async def _unsampled(row: TaskRow, patch: str) -> str:
    """Return a run id with which training does not audit the patch; the id seeds the sampling of audits."""
    for number in itertools.count():
        run_id = f"bench-{number}"
        if not await Audits("sample", run_id=run_id).draws(row, patch, evaluation=False):
            return run_id
    raise AssertionError


def show(found: dict[str, Any]) -> None:
    """Print the table."""
    print(f"{'row':<12}{'patch':<10}" + "".join(f"{mode:>22}" for mode in MODES))
    for name, kind in found["rows"].items():
        for label in ("passing", "failing"):
            rate, ratio = (kind[label][key] for key in ("gradings_per_second_per_core", "time_ratio"))
            cells = "".join(f"{rate[mode]:>12.2f}/s{ratio[mode]:>7.2f}×" for mode in MODES)
            print(f"{name:<12}{label:<10}{cells}")
        print(f"{'':<12}proof of {kind['variants']} variants: {kind['proof_seconds']:.2f} s")


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure less, only print")
    parser.add_argument("--gradings", type=int, default=16, help="concurrent gradings of each kind")
    options = parser.parse_args()
    gradings, rounds = (2, 1) if options.quick else (options.gradings, 3)
    results: dict[str, Any] = {"cpus": CPUS, "load_before": os.getloadavg()[0], "gradings": gradings}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        toolchain_or_skip(home)
        results["rows"] = {
            name: asyncio.run(measure(home, row, gradings, rounds)) for name, row in rows(home).items()
        }
    show(results)
    store("grading", results, quick=options.quick)


if __name__ == "__main__":
    main()
