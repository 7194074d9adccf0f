"""Report of the benchmark of test-time scaling, and the lessons of its testing agent."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from bench.scaling.outcomes import (
    RANDOM,
    SELECTORS,
    SeedOutcome,
    best_at_k,
    difference,
    intervals,
    within_budget,
)
from bench.scaling.teacher import lesson, write_lessons
from engine.evaluation.attempts import Attempt
from engine.inference.scripted.policies import ReplayPolicy
from engine.tools.parser import parse
from engine.types import TaskRow
from engine.verifiers.selection.candidates import Candidate
from tests.builders.rollout_builders import make_row

TASKS, ROLLOUTS = "abc", 4


def candidate(seed: int, task: str, index: int) -> Candidate:
    """Return a rollout; the last of a task is resolved, and only the judge of seed 1 ranks it wrongly."""
    resolved = index == ROLLOUTS - 1
    p_yes = 0.9 if resolved == (seed == 0) else 0.1
    return Candidate(
        task_id=task,
        trajectory_id=f"{seed}/{task}/{index}",
        resolved=resolved,
        p_yes=p_yes,
        regression_passes=5,
        reproduction_passes=int(resolved),
        steps=3,
        patch_hash=str(index),
    )


def outcome(seed: int) -> SeedOutcome:
    attempts = [
        Attempt(task_id=task, index=index, solved=index == ROLLOUTS - 1, generated_tokens=100 * (index + 1))
        for task, index in product(TASKS, range(ROLLOUTS))
    ]
    candidates = [candidate(seed, task, index) for task, index in product(TASKS, range(ROLLOUTS))]
    return SeedOutcome(seed=seed, candidates=candidates, attempts=attempts)


@pytest.fixture
def outcomes() -> list[SeedOutcome]:
    return [outcome(0), outcome(1)]


def test_best_at_k_is_computed_by_seed_and_task(outcomes: list[SeedOutcome]) -> None:
    rates = best_at_k(outcomes, [1, ROLLOUTS])
    assert {rate.shape for rate in rates.values()} == {(2, len(TASKS), 2)}
    for selector in SELECTORS:
        assert rates[selector][:, :, 0] == pytest.approx(np.full((2, 3), 0.25)), "K = 1 selects nothing"
    assert rates["ef"][:, 0, 1].tolist() == [1.0, 0.0]
    assert rates["eb"][:, 0, 1].tolist() == rates["oracle"][:, 0, 1].tolist() == [1.0, 1.0]
    assert rates[RANDOM][:, 0, 1].tolist() == [0.25, 0.25]
    assert difference(rates, "eb", RANDOM)[1] == pytest.approx((0.75, 0.75, 0.75))


def test_intervals_cover_variation_over_seeds_and_tasks() -> None:
    by_seed = np.array([[[0.0], [0.0]], [[1.0], [1.0]]])
    assert intervals(by_seed) == [(0.5, 0.0, 1.0)]
    assert intervals(by_seed.transpose(1, 0, 2)) == [(0.5, 0.0, 1.0)]
    with_gap = np.array([[[0.25], [np.nan]]])
    assert intervals(with_gap)[0][0] == 0.25


def test_rollouts_count_within_the_budget_in_which_they_ended(outcomes: list[SeedOutcome]) -> None:
    rates = within_budget(outcomes, [300, 400])
    assert rates[0, 0].tolist() == [0.0, 0.25]


def row(statement: str) -> TaskRow:
    default = make_row()
    return replace(default, task=replace(default.task, problem_statement=statement))


def test_a_lesson_imports_the_test_that_the_statement_names(tmp_path: Path) -> None:
    named = row(
        "x.py: `f` (lines 1-2) is broken.\nFailing: pkg/tests/test_x.py::TestX::test_f[1-a] (KeyError)"
    )
    responses = lesson(named.task)
    assert responses is not None
    write, submit = (parse(response, "xml").call for response in responses)
    assert write is not None
    assert submit is not None
    assert write.arguments["file_text"] == "from pkg.tests.test_x import TestX\n"
    assert write.arguments["path"] == f"{named.task.workdir}/test_issue.py"
    assert submit.name == "finish"
    silent = row("x.py: `f` (lines 1-2) is broken.")
    assert lesson(silent.task) is None
    path = tmp_path / "lessons" / "x.jsonl"
    assert write_lessons([named, silent], path) == 1
    ReplayPolicy.from_file(path)
