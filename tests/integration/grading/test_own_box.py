"""Tasks graded by the state of the system, in the agent's own sandbox."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.policies import ReplayPolicyConfig
from engine.config.rollout import DatasetConfig, GradingConfig, RolloutConfig
from engine.config.run import RolloutRun, ValidateRun
from engine.config.sandbox import SandboxConfig
from engine.config.validation import ValidatedDatasetConfig, ValidationConfig
from engine.datasets.store import dataset_path, save_dataset
from engine.events.health import RowStatus, ValidationRecord, read
from engine.grading.grader import Grader
from engine.orchestrator import execute, perform
from engine.rollout import GroupRequest, RolloutScheduler
from engine.sandbox.base import SandboxBackend
from engine.sandbox.local.backend import LocalBackend
from engine.types import TaskRow, Verdict
from tests.builders.own_box_builders import (
    ANSWER,
    SOLUTION,
    assert_state_counts,
    environments,
    graded_after,
    state_task,
)
from tests.builders.rollout_builders import SUBMIT, Recorder, TextPolicy, quick_agent, respond
from tests.integration.toy_yard import events, open_context


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own-box")


@pytest.fixture(scope="module")
def row(home: Path) -> TaskRow:
    return state_task(home)


@pytest.fixture
def backend(home: Path) -> SandboxBackend:
    return LocalBackend(home)


async def test_changes_outside_of_the_workdir_affect_the_grade(backend: SandboxBackend, row: TaskRow) -> None:
    await assert_state_counts(backend, row)


async def test_fresh_sandbox_gets_only_the_patch_and_the_grade_reports_it(
    backend: SandboxBackend, row: TaskRow
) -> None:
    grade = await graded_after(environments(backend, own_box=False), row, SOLUTION)
    assert grade.verdict is Verdict.FAILED
    assert "graded from the patch in a fresh sandbox" in grade.detail


async def test_path_that_blocks_a_test_file_is_attributed_to_the_agent(home: Path, row: TaskRow) -> None:
    files = {**row.answer.test_files, "checks/test.sh": "exit 1\n"}
    blocked = replace(row, answer=replace(row.answer, test_files=files))
    grade = await graded_after(environments(LocalBackend(home)), blocked, "mkdir -p checks/test.sh/x")
    assert (grade.verdict, grade.reward) == (Verdict.PATCH_FAILED, 0.0)
    assert "checks/test.sh" in grade.detail
    assert "the agent changed this path" in grade.detail


REWARD = "mkdir -p /tmp/verifier; echo 1 > /tmp/verifier/reward.txt; chmod 444 /tmp/verifier/*"
SETTINGS = "printf '[pytest]\\naddopts = --collect-only\\n' > /tmp/pytest.ini"


@pytest.mark.parametrize(("left", "verdict"), [(REWARD, Verdict.FAILED), (SETTINGS, Verdict.TAMPERED)])
async def test_forged_rewards_and_pytest_settings_of_the_agent_do_not_pass(
    home: Path, row: TaskRow, left: str, verdict: Verdict
) -> None:
    grade = await graded_after(environments(LocalBackend(home)), row, left)
    assert (grade.verdict, grade.reward) == (verdict, 0.0), grade.log


@pytest.mark.parametrize("obstacle", ["chmod 000 pyproject.toml", "mkfifo pipe; head -c 40M /dev/zero > big"])
async def test_changes_that_cannot_become_a_patch_are_still_graded(
    backend: SandboxBackend, row: TaskRow, obstacle: str
) -> None:
    scheduler = RolloutScheduler(
        environments=environments(backend),
        policy=TextPolicy([respond("execute_bash", cmd=f"{SOLUTION}{obstacle}"), SUBMIT]),
        agent=quick_agent(),
        rollout=RolloutConfig(),
        seed=1,
        observer=Recorder(),
    )
    (group,) = await scheduler.collect([GroupRequest(row=row, iteration=0, phase="train", size=1)])
    (trajectory,) = group.trajectories
    assert trajectory.reward == 1.0, trajectory.grade
    assert trajectory.timings.grading > 0


async def test_run_grades_each_rollout_in_its_own_sandbox(home: Path, row: TaskRow) -> None:
    """Two rollouts with scripted responses: one writes the answer, the other does not."""
    save_dataset(home, "state", [row], {})
    stored = home / "stored.jsonl"
    with stored.open("w") as file:
        for index, command in enumerate((SOLUTION, "true")):
            steps = [{"response": response} for response in (respond("execute_bash", cmd=command), SUBMIT)]
            file.write(json.dumps({"key": {"task_id": row.task.id, "index": index}, "steps": steps}) + "\n")
    config = RolloutRun(
        name="state",
        dataset=DatasetConfig(name="state"),
        sandbox=SandboxConfig(memory_mb=256, disk_mb=64),
        agent=quick_agent(),
        grading=GradingConfig(timeout_s=60.0),
        policy=ReplayPolicyConfig(source=str(stored)),
        rollout=RolloutConfig(group_size=2),
    )
    with open_context(home, "state-run", config) as run:
        assert await asyncio.to_thread(execute, config, run) == 0
    finished = [event for event in events(run.run_dir) if event["type"] == "trajectory_finished"]
    outcomes = {
        event["ref"]["index"]: (event["verdict"], event["reward"], event.get("counterfactual"))
        for event in finished
    }
    assert outcomes == {0: ("passed", 1.0, "own_box"), 1: ("failed", 0.0, None)}
    assert [event["patch"] for event in finished] == ["", ""]


async def _validate(home: Path, name: str, row: TaskRow, **grading: bool) -> ValidationRecord:
    save_dataset(home, name, [row], {})
    settings = ValidateRun(
        name="validation",
        dataset=ValidatedDatasetConfig(name=name),
        validation=ValidationConfig(repeats=1, retry_wait_s=0.01),
        grading=GradingConfig(timeout_s=60.0, reuse_verdicts=False, **grading),
        sandbox=SandboxConfig(memory_mb=256, disk_mb=64),
    )
    with open_context(home, name, settings) as run:
        await perform(settings, run)
    (record,) = read(dataset_path(home, name))
    assert isinstance(record, ValidationRecord)
    return record


async def test_validation_runs_the_solution_in_the_graded_sandbox(home: Path, row: TaskRow) -> None:
    record = await _validate(home, "state-valid", row)
    assert (record.status, record.reason) == (RowStatus.VALID, "")
    assert (record.gold.verdicts, record.noop.verdicts) == (["passed"], ["failed"])
    metadata = {**row.answer.metadata, "solution": f"echo 41 > {ANSWER}"}
    broken = replace(row, answer=replace(row.answer, metadata=metadata))
    record = await _validate(home, "state-broken", broken)
    assert record.status is RowStatus.GOLD_FAILS
    assert "the solution script ended with 1" in record.reason


async def test_validation_names_the_remedy_for_solutions_outside_of_the_workdir(
    home: Path, row: TaskRow
) -> None:
    for name, task_row in (
        ("state-unset", replace(row, answer=replace(row.answer, own_box=False))),
        ("state-off", row),
    ):
        record = await _validate(home, name, task_row, own_box=False)
        assert record.status is RowStatus.GOLD_FAILS
        assert "changes nothing below /testbed" in record.reason
        assert 'environment_mode = "shared"' in record.reason
        assert "grading.own_box" in record.reason


def test_only_own_box_tasks_have_an_own_box_grading(home: Path, row: TaskRow) -> None:
    config = GradingConfig(counterfactual="off", evaluation_timeout_s=7.0)
    grader = Grader(backend=LocalBackend(home), config=config, sandbox=SandboxConfig(), run_id="r")
    grading = grader.own_box(row, evaluation=True)
    assert grading is not None
    assert grading.timeout_s == row.answer.timeout_s == 120.0
    assert grader.own_box(replace(row, answer=replace(row.answer, own_box=False))) is None
