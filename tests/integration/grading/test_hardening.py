"""Hardening of a dataset in real sandboxes: a weak task gets tests, a kill repeats nothing."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config.recipes import resolve
from engine.config.rollout import GradingConfig
from engine.config.run import AnyRun
from engine.config.sandbox import SandboxConfig
from engine.datasets.store import load_dataset, save_dataset, with_content_id
from engine.errors import ConfigError
from engine.grading.grader import Grader
from engine.orchestrator import execute, perform
from engine.orchestrator.context import RunResult
from engine.sandbox.local.backend import LocalBackend
from engine.testing.testrun import driver_command
from engine.types import Grade, TaskRow, Verdict
from tests.builders.dataset_builders import patched
from tests.builders.verifier_builders import Source, events, roll_out
from tests.integration.toy_yard import open_context

WEAK = """from toy.numbers import clamp


def test_clamp():
    assert clamp(5, 0, 10) == 5
"""
RULE = "def clamp(value, low, high):\n"
WRONG = patched(RULE + "    return low if value < low else value\n")
"""A patch that the weak test lets pass."""
FORGED = patched(
    "class Same(int):\n    __hash__ = int.__hash__\n\n    def __eq__(self, other):\n        return True\n\n\n"
    + RULE
    + "    return Same(value)\n"
)
"""A patch whose result equals everything: an audit catches it."""
HONEST = patched(RULE + "    return max(low, min(high, value)) if value < 40 else None\n")
"""A solution with other results for large values, which the weak test leaves open."""


@pytest.fixture(scope="module")
def rows(home: Path, row: TaskRow) -> list[TaskRow]:
    """Store a weak task and a task of another runner, and a run with an honest alternative."""
    made = [_weak(row, "weak")]
    command = replace(row.answer, test_command="python3 -m pytest tests", log_parser="parse_log_pytest")
    made.append(
        with_content_id(replace(made[0], task=replace(row.task, instance_id="script"), answer=command))
    )
    save_dataset(home, "weak", made, {"seed": 1})
    source = Source(home, "honest")
    (source.run_dir / "config.json").write_text(json.dumps({"dataset": {"name": "weak"}}))
    with source.attempt() as sink:
        for index, (passed, patch) in enumerate(
            ((True, HONEST), (True, FORGED), (True, "junk\n"), (False, WRONG))
        ):
            roll_out(sink, made[0].task.id, index, passed=passed, patch=patch)
    return made


def _weak(row: TaskRow, name: str) -> TaskRow:
    answer = replace(
        row.answer,
        test_files={"tests/test_weak.py": WEAK},
        fail_to_pass=("tests/test_weak.py::test_clamp",),
        pass_to_pass=(),
        test_command=driver_command(["tests/test_weak.py"], ["."]),
    )
    task = replace(row.task, instance_id=name)
    return with_content_id(replace(row, task=task, answer=answer))


def config(**settings: Any) -> AnyRun:
    overrides = {
        "curation.dataset": "weak", "curation.output": "hard", "curation.alternatives_of": ["honest"],
        "curation.wrong_patches": 4, "sandbox.memory_mb": 256, "sandbox.start_retries": 0,
    }  # fmt: skip
    return resolve("hardened-dataset", {**overrides, **settings})


def harden(home: Path, name: str, **settings: Any) -> RunResult:
    run_config = config(**settings)
    with open_context(home, name, run_config) as run:
        return asyncio.run(perform(run_config, run))


def verdict(home: Path, row: TaskRow, patch: str) -> Verdict:
    grader = Grader(
        backend=LocalBackend(home), config=GradingConfig(timeout_s=60.0), sandbox=SandboxConfig(), run_id="t"
    )
    return asyncio.run(grader.grade(row, patch, trusted=True)).verdict


@pytest.fixture(scope="module")
def hardened(home: Path, rows: list[TaskRow]) -> RunResult:
    return harden(home, "harden")


def test_weak_task_gets_tests_that_a_wrong_patch_fails_and_an_alternative_passes(
    home: Path, rows: list[TaskRow], hardened: RunResult
) -> None:
    dataset = load_dataset(home, "hard")
    assert load_dataset(home, "weak").rows == tuple(rows)
    weak, hard = rows[0], dataset.rows[0]
    assert (hard.task.instance_id, hard.task.id != weak.task.id) == (weak.task.instance_id, True)
    record = hard.answer.metadata["hardening"]
    added = {*record["fail_to_pass"], *record["pass_to_pass"]}
    assert record["of"] == weak.task.id
    assert 0 < len(added) <= 12
    assert added == {*hard.answer.fail_to_pass, *hard.answer.pass_to_pass} - {*weak.answer.fail_to_pass}
    assert set(hard.answer.test_files) == {"tests/test_weak.py", "tests/test_hardened.py"}
    assert record["rejected_before"] < record["rejected_after"] <= record["wrong_patches"]
    assert record["alternatives"] == 1
    assert record["failed_on_alternatives"] > 0, "clamp(50, 0, 10) says more than the task does"
    assert [verdict(home, weak, patch) for patch in (WRONG, HONEST)] == [Verdict.PASSED] * 2
    assert verdict(home, hard, WRONG) is Verdict.FAILED
    assert [verdict(home, hard, patch) for patch in (HONEST, weak.answer.gold_patch)] == [Verdict.PASSED] * 2
    assert verdict(home, hard, "") is Verdict.FAILED
    stages = {stage["stage"]: stage["reached"] for stage in dataset.provenance["funnel"]}
    assert (stages["tasks"], stages["hardened"]) == (2, 1)
    assert hardened.summary["hardened"] == 1
    assert dataset.provenance["examples"]["other_runner"][0]["item"] == "script"
    assert dataset.rows[1] == rows[1]
    assert dataset.provenance["original"] == {"seed": 1}


def test_next_run_repeats_nothing_that_an_earlier_one_did(
    home: Path, hardened: RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = load_dataset(home, "hard").rows
    [results] = (home / "hardening").iterdir()
    with results.open("a") as file:
        file.write('\n{"key": "cut')
    graded: list[TaskRow] = []
    monkeypatch.setattr(Grader, "grade", lambda _, row, *_patch, **_options: graded.append(row))
    again = harden(home, "again")
    assert (graded, load_dataset(home, "hard").rows) == ([], made)
    assert again.summary | {"seconds": 0} == hardened.summary | {"seconds": 0}


def test_tasks_that_infrastructure_lost_are_reported(
    home: Path, rows: list[TaskRow], hardened: RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = _weak(rows[0], "lost")
    save_dataset(home, "lossy", [*rows, lost], {})
    [results] = (home / "hardening").glob("weak-*")
    shutil.copy(results, results.with_name(results.name.replace("weak", "lossy")))
    graded: list[TaskRow] = []

    async def lose(_: Grader, row: TaskRow, *_patch: object, **_options: object) -> Grade:
        graded.append(row)
        return Grade(verdict=Verdict.INFRA_ERROR, reward=None, detail="no room")

    monkeypatch.setattr("engine.grading.hardening.harden._WAITS", [0.0, 0.0])
    monkeypatch.setattr(Grader, "grade", lose)
    harden(home, "lossy", **{"curation.dataset": "lossy", "curation.output": "lossy-hard"})
    [alert] = events(home, "lossy", "alert")
    assert (alert["code"], alert["task_ids"]) == ("hardening_infrastructure", [lost.task.id])
    assert alert["message"] == "1 of 3 tasks could not be examined; lost: no room"
    assert graded == [lost] * 3


def test_impossible_hardenings_are_refused(home: Path, rows: list[TaskRow]) -> None:
    with pytest.raises(ConfigError, match=r"must differ from the dataset 'weak'"):
        config(**{"curation.output": "weak"})
    with pytest.raises(ConfigError, match="nowhere"):
        harden(home, "refused", **{"curation.alternatives_of": ["nowhere"]})
    save_dataset(home, "scripts", rows[1:], {})
    settings = config(**{"curation.dataset": "scripts", "curation.output": "harder"})
    with open_context(home, "none", settings) as run:
        assert execute(settings, run) == 1
        assert (
            "no task of 'scripts' was hardened: other_runner 1" in (run.run_dir / "failure.json").read_text()
        )
