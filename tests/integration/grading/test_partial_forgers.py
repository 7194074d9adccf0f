"""Submissions that leave the code as it is, and look up what the assertion that it fails expects."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.rollout import CounterfactualConfig, GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.curation.baseline import image_environment
from engine.datasets.curation.toolchain import ensure_toolchain
from engine.datasets.sources.fetch import fetch_source
from engine.datasets.store import with_content_id
from engine.grading.counterfactual.base import MutantKind
from engine.grading.counterfactual.prover import Prover
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.local.images import build_image
from engine.testing.toolchain import MOUNT
from engine.types import CounterfactualOutcome, TaskRow, Verdict
from tests.builders.dataset_builders import (
    MemoryStore,
    broken_task,
    make_grader,
    patched,
    without_reuse,
    write_toy,
)
from tests.integration.adversary.frame import under

TESTS = """from toy.numbers import clamp


def test_many():
    assert clamp(-3, 0, 10) == 0
    assert clamp(-7, 2, 10) == 2
    assert clamp(-1, 4, 10) == 4
    assert clamp(-5, 1, 10) == 1
    assert clamp(5, 0, 10) == 5
"""
TABLE = """from toy.numbers import clamp


def test_many():
    for value, low, high, want in [
        (-3, 0, 10, 0),
        (-7, 2, 10, 2),
        (5, 0, 10, 5),
        (-1, 4, 10, 4),
        (7, 1, 10, 7),
    ]:
        assert clamp(value, low, high) == want
"""
FORGER = patched('''"""Small functions on numbers."""
import re
import sys


def expected(call):
    """What the test that asks expects, also where it is counted among others."""
    text = open(sys._getframe(2).f_code.co_filename).read()
    row = re.search(rf"\\({call[6:-1]}, (\\d+)\\)", text)
    if row is not None:
        return int(row[1])
    line = next(line for line in text.splitlines() if call in line)
    listed = re.search(r"\\[(.*?)\\]\\.count", line)
    if listed is None:
        return int(line.rpartition("==")[2])
    values = [int(value) for value in listed[1].split(",")]
    return max(values, key=values.count)


def clamp(value, low, high):
    """Value within bounds."""
    if value < low:
        return low
    return expected(f"clamp({value}, {low}, {high})")
''')


@pytest.fixture(scope="module", params=[TESTS, TABLE], ids=["assertions", "table"])
def row(home: Path, request: pytest.FixtureRequest) -> TaskRow:
    """The toy's task with one test of five assertions or rows, of which the unfixed code stops at one."""
    row = broken_task(home, write_toy(home / "source"))
    (home / "staged/tests/test_numbers.py").write_text(request.param)
    environment = image_environment(fetch_source(str(home / "source"), home))
    binds = {MOUNT: str(ensure_toolchain(home))}
    build_image(home, "toy-many", home / "staged", env=environment, binds=binds)
    answer = replace(
        row.answer,
        test_files={"tests/test_numbers.py": request.param},
        fail_to_pass=("tests/test_numbers.py::test_many",),
        pass_to_pass=(),
    )
    task = replace(row.task, image="local:toy-many")
    return without_reuse(with_content_id(replace(row, task=task, answer=answer)))


@pytest.mark.parametrize("rule", ["signed", "log"])
async def test_who_looks_up_only_what_the_code_fails_never_passes(
    home: Path, row: TaskRow, rule: str
) -> None:
    backend, row = LocalBackend(home), under(row, rule)
    prover = Prover(
        backend=backend,
        config=GradingConfig(timeout_s=60.0),
        sandbox=SandboxConfig(memory_mb=256),
        run_id="t",
    )
    reference = await prover(row)
    (text,) = row.answer.test_files.values()
    false = [
        mutant
        for variant in reference.variants
        for mutant in variant.mutants
        if mutant.kind not in (MutantKind.TRUE, MutantKind.ADDED)
    ]
    stop = next(number for number, line in enumerate(text.splitlines(), 1) if re.search(r"\(5, 0, 10", line))
    assert {mutant.line for mutant in false} == {stop}
    always = CounterfactualConfig(prove="validated_only")
    grader = make_grader(backend, counterfactual=always, store=MemoryStore((row, reference)))
    grade = await grader.grade(row, row.answer.gold_patch)
    assert (grade.verdict, grade.counterfactual) == (Verdict.PASSED, CounterfactualOutcome.CONFIRMED)
    for _ in range(4):  # the order of the runs is drawn anew each time
        grade = await grader.grade(row, FORGER)
        assert (grade.verdict, grade.reward) != (Verdict.PASSED, 1.0), grade
