"""Gradings per second per core, and what counterfactual runs add, by kind of row.

The toy task as a row of three kinds: graded by the driver's signed report (quickstart), by a script that
applies a test patch before its markers (SWE-bench), by one without test patch and ``pytest -v`` (SWE-smith).
References are made first; their time is told apart. Then the gold patch, which passes, and no patch at all,
which fails, are graded by turns with one run, with the extra runs of training and with those of evaluations.
Last, the gold patch is graded alone as in evaluations: its extra runs one after the other, then at once.
Run: ``python -m bench.grading [--quick] [--gradings N]``; results go to ``bench/results/grading.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness import store
from engine.config.rollout import CounterfactualConfig, GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.importers.formats.evalscript import make_script
from engine.grading.counterfactual.prover import Prover
from engine.grading.grader import Grader
from engine.patches.diff import diff_texts
from engine.sandbox.local.backend import LocalBackend
from engine.testing.toolchain import MOUNT
from engine.types import TaskRow, Verdict
from tests.builders.dataset_builders import (
    TEST_NUMBERS,
    MemoryStore,
    broken_task,
    toolchain_or_skip,
    without_reuse,
    write_toy,
)

SANDBOX = SandboxConfig(memory_mb=256)
FILE = "tests/test_numbers.py"
PYTEST = f"PYTHONPATH={MOUNT} python3 -m pytest -c {MOUNT}/pytest.ini --rootdir=/testbed -p no:cacheprovider"
NEW_TEST = "\n\ndef test_clamp_within():\n    assert clamp(7, 0, 10) == 7\n"
MODES = ("one run", "training", "evaluation")
ALONE = 5
"""Gradings of a patch alone."""
AT_ONCE = 4


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


def settings(mode: str, parallel: int = os.cpu_count() or 1) -> GradingConfig:
    """Return the settings of grading; ``one run`` is without counterfactual runs."""
    alone = CounterfactualConfig(mode="off", prove="validated_only")
    return GradingConfig(
        timeout_s=120.0,
        max_parallel=parallel,
        counterfactual=alone if mode == "one run" else CounterfactualConfig(prove="validated_only"),
    )


async def measure(home: Path, row: TaskRow, gradings: int) -> dict[str, Any]:
    """Measure one kind of row."""
    backend = LocalBackend(home)
    prover = Prover(backend=backend, config=settings("training"), sandbox=SANDBOX, run_id="bench")
    began = time.perf_counter()
    reference = await prover(row)
    found: dict[str, Any] = {"proof_seconds": round(time.perf_counter() - began, 3)}
    found["variants"] = len(reference.variants)
    kept = MemoryStore((row, reference))
    graders = {
        mode: Grader(backend=backend, config=settings(mode), sandbox=SANDBOX, run_id="bench", store=kept)
        for mode in MODES
    }
    for what, patch, verdict in (
        ("passing", row.answer.gold_patch, Verdict.PASSED),
        ("failing", "", Verdict.FAILED),
    ):
        rates: dict[str, list[float]] = {mode: [] for mode in MODES}
        for _ in range(3):  # by turns, so that changes of the machine's load affect all
            for mode, grader in graders.items():
                began = time.perf_counter()
                jobs = (grader.grade(row, patch, evaluation=mode == "evaluation") for _ in range(gradings))
                grades = await asyncio.gather(*jobs)
                wrong = [f"{grade.verdict}: {grade.detail}" for grade in grades if grade.verdict != verdict]
                assert not wrong, f"{what} patch, {mode}: {wrong[0]}"
                rates[mode].append(gradings / (time.perf_counter() - began) / (os.cpu_count() or 1))
        per_core = {mode: statistics.median(values) for mode, values in rates.items()}
        found[what] = {
            "gradings_per_second_per_core": {mode: round(rate, 3) for mode, rate in per_core.items()},
            "time_ratio": {mode: round(per_core["one run"] / rate, 2) for mode, rate in per_core.items()},
        }
    found["evaluation_alone_seconds"] = await alone(backend, row, kept)
    return found


async def alone(backend: LocalBackend, row: TaskRow, kept: MemoryStore) -> dict[str, float]:
    """Return the median time of one evaluation while nothing else is graded."""
    times: dict[str, list[float]] = {"one run": [], "in turn": [], "at once": []}
    graders = {
        how: Grader(
            backend=backend,
            config=settings(mode, parallel),
            sandbox=SANDBOX,
            run_id="bench",
            store=kept,
        )
        for how, mode, parallel in (
            ("one run", "one run", 1),
            ("in turn", "evaluation", 1),
            ("at once", "evaluation", AT_ONCE),
        )
    }
    for _ in range(ALONE):
        for how, grader in graders.items():
            began = time.perf_counter()
            grade = await grader.grade(row, row.answer.gold_patch, evaluation=True)
            assert grade.verdict is Verdict.PASSED, grade.detail
            times[how].append(time.perf_counter() - began)
    return {how: round(statistics.median(values), 3) for how, values in times.items()}


def show(found: dict[str, Any]) -> None:
    """Print the table."""
    print(f"{'row':<12}{'patch':<10}" + "".join(f"{mode:>22}" for mode in MODES))
    for name, kind in found["rows"].items():
        for what in ("passing", "failing"):
            rate, ratio = (kind[what][key] for key in ("gradings_per_second_per_core", "time_ratio"))
            cells = "".join(f"{rate[mode]:>12.2f}/s{ratio[mode]:>7.2f}×" for mode in MODES)
            print(f"{name:<12}{what:<10}{cells}")
        print(f"{'':<12}proof of {kind['variants']} variants: {kind['proof_seconds']:.2f} s")
        single = ", ".join(f"{how} {taken:.2f} s" for how, taken in kind["evaluation_alone_seconds"].items())
        print(f"{'':<12}an evaluation alone: {single}")


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure less, only print")
    parser.add_argument("--gradings", type=int, default=16, help="gradings of each kind at once")
    options = parser.parse_args()
    gradings = 2 if options.quick else options.gradings
    found: dict[str, Any] = {"cpus": os.cpu_count(), "load_before": os.getloadavg()[0], "gradings": gradings}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        toolchain_or_skip(home)
        found["rows"] = {name: asyncio.run(measure(home, row, gradings)) for name, row in rows(home).items()}
    show(found)
    store("grading", found, quick=options.quick)


if __name__ == "__main__":
    main()
