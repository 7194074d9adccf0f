"""R2E-Gym's trajectory format, on real data and on broken lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.datasets.imported_trajectories import events_of
from engine.datasets.trajectories_r2e import parse_action, read_r2e_trajectories
from engine.errors import DatasetError
from engine.events.types import TrajectoryFinished
from engine.types import TerminationReason, TestOutcome, Verdict
from tests.unit.datasets.importers import rows

REPOSITORY = Path(__file__).parents[3]
DATA = REPOSITORY.parent / "shared" / "data" / "r2e_gym" / "trajectories.jsonl"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the sample trajectories are not on this machine")


def record(**changes: Any) -> dict[str, Any]:
    step = {"thought": "<think>t</think>\nprose", "action": "", "observation": "o", "done": False}
    base = {
        "ds": {
            "instance_id": "i", "repo": "r", "base_commit": "c", "problem_statement": "p", "patch": "d",
            "FAIL_TO_PASS": '["t::a"]', "PASS_TO_PASS": "['t::b']",
        },
        "exit_reason": "agent", "reward": 0.0, "trajectory_steps": [step, step],
        "test_output": "PASSED t::a\nFAILED t::b - assert 0\n", "output_patch": "x",
    }  # fmt: skip
    return {**base, **changes}


def write(tmp_path: Path, *records: object) -> Path:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in records))
    return path


@needs_data
def test_real_trajectories_keep_every_step_and_agree_with_their_logs() -> None:
    lines = DATA.read_text().splitlines()
    imported = list(read_r2e_trajectories(DATA))
    assert len(imported) == len(lines) == 10
    for trajectory, line in zip(imported, lines, strict=True):
        published = json.loads(line)
        assert len(trajectory.steps) == len(published["trajectory_steps"])
        for step, original in zip(trajectory.steps, published["trajectory_steps"], strict=True):
            assert original["thought"] in step.response
            assert original["action"] in step.response
            assert step.observation == original["observation"]
            assert step.call is not None
        assert trajectory.tests
        passed = all(test.outcome is TestOutcome.PASSED for test in trajectory.tests)
        assert passed == (trajectory.verdict is Verdict.PASSED)




def test_siblings_are_numbered_and_unparsable_steps_are_kept(tmp_path: Path) -> None:
    first, second = read_r2e_trajectories(write(tmp_path, record(), record()))
    assert (first.index, second.index) == (0, 1)
    assert first.row.task.id == second.row.task.id
    assert [(step.thought, step.error) for step in first.steps] == [("t\nprose", "the action is empty")] * 2
    assert [test.outcome for test in first.tests] == [TestOutcome.PASSED, TestOutcome.FAILED]
    assert (first.row.answer.fail_to_pass, first.row.answer.pass_to_pass) == (("t::a",), ("t::b",))


def test_fields_without_a_column_and_the_prompt_are_kept(tmp_path: Path) -> None:
    prompts = {
        "system_prompt": "be {brief}",
        "instance_prompt": "In {working_dir}: {problem_statement} {{x}} {other} {working_dir.__class__}",
    }
    more = {
        "agent_args": {**prompts, "llm_name": "m"}, "exp_name": "e", "verifier_prob": 0.25, "max_steps": 3,
        "problem_statement": "fix {x}", "env_args": {"ds": {"patch": "the answer"}, "ip": "1"},
        "regression_test_output": None,
    }  # fmt: skip
    (trajectory,) = read_r2e_trajectories(write(tmp_path, record(**more)))
    *_, finished = events_of(trajectory, first_seq=1, time=0.0)
    assert isinstance(finished, TrajectoryFinished)
    assert finished.imported is not None
    assert finished.imported == {
        "agent_args": more["agent_args"], "exp_name": "e", "verifier_prob": 0.25, "max_steps": 3,
        "exit_reason": "agent", "env_args": {"ip": "1"}, "regression_test_output": None,
    }  # fmt: skip
    assert [(m.role, m.content) for m in finished.opening] == [
        ("system", "be {brief}"),
        ("user", "In /testbed: fix {x} {x} {other} {working_dir.__class__}"),
    ]




def test_limits_are_no_submission_and_a_missing_reward_is_no_verdict(tmp_path: Path) -> None:
    path = write(tmp_path, record(exit_reason="token_limit", reward=None))
    (trajectory,) = read_r2e_trajectories(path)
    assert trajectory.termination is TerminationReason.MAX_CONTEXT
    assert (trajectory.reward, trajectory.verdict) == (None, None)


def test_values_of_a_call_are_lossless() -> None:
    call, error = parse_action(
        "<function=edit>\n  <parameter=old>\n  x = 1\n\n</parameter>\n"
        "<parameter=new> y</parameter></function>"
    )
    assert call is not None
    assert not error
    assert call.arguments == {"old": "  x = 1\n", "new": " y"}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ds": 3}, "ds"),
        ({"exit_reason": "aliens"}, "exit_reason"),
        ({"trajectory_steps": None}, "trajectory_steps"),
        ({"trajectory_steps": [{"thought": ""}]}, "trajectory_steps.0.action"),
        ({"reward": "high"}, "reward"),
        ({"ds": {**record()["ds"], "FAIL_TO_PASS": 7}}, "FAIL_TO_PASS"),
        ({"ds": {**record()["ds"], "patch": None}}, "patch"),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(DatasetError) as raised:
        list(read_r2e_trajectories(write(tmp_path, record(), record(**changes))))
    assert (raised.value.row, raised.value.field) == (1, field)


def converted(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "engine.datasets.trajectories_r2e", str(path)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_the_command_leaves_out_what_is_no_trajectory_and_says_why(tmp_path: Path) -> None:
    path = write(tmp_path, record(), record(exit_reason="aliens"), 3, record())
    path.write_bytes(path.read_bytes() + b'{"ds": "\xff"}\n' + b"[" * 100_000)
    done = converted(path)
    assert done.returncode == 0
    finished = [line for line in done.stdout.splitlines() if '"trajectory_finished"' in line]
    assert [json.loads(line)["ref"]["index"] for line in finished] == [0, 1]
    told = done.stderr.splitlines()
    assert [int(line.split("line ")[1].split(":")[0]) for line in told] == [2, 3, 5, 6]
    assert "unknown reason 'aliens' (row 1, field 'exit_reason'); left out" in told[0]


def test_a_file_without_trajectories_is_an_error(tmp_path: Path) -> None:
    for records in ((), (record(ds=1),)):
        done = converted(write(tmp_path, *records))
        assert done.returncode == 2
        assert "no line that is a trajectory" in done.stderr
    assert "row 0, field 'ds'" in done.stderr


def test_rows_of_r2e_gyms_own_datasets_are_tasks_by_their_commits(tmp_path: Path) -> None:
    log = rows.OLD_LOG.replace("FAILED", "PASSED").replace(" - assert 11 == 10", "")
    (trajectory,) = read_r2e_trajectories(write(tmp_path, record(ds=rows.r2e_gym(), test_output=log)))
    task = trajectory.row.task
    assert (task.instance_id, task.repo) == ("aiohttp__ffffffffffff", "aio-libs/aiohttp")
    assert task.image == rows.r2e_gym()["docker_image"]
    assert {test.test_id: test.outcome for test in trajectory.tests} == {
        "TestCore.test_secret_upper": TestOutcome.PASSED,
        "TestCore.test_secret_lower": TestOutcome.PASSED,
    }
    with pytest.raises(DatasetError, match="not JSON|malformed|file_diffs") as raised:
        list(read_r2e_trajectories(write(tmp_path, record(ds=rows.r2e_gym(parsed_commit_content="{}")))))
    assert (raised.value.row, raised.value.field) == (0, "ds.parsed_commit_content.file_diffs")
