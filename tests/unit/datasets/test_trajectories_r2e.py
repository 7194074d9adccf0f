"""R2E-Gym's trajectory format: conversion, odd fields and malformed lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.datasets.conversations.base import REPLACED
from engine.datasets.imported_trajectories import convert, events_of
from engine.datasets.trajectories_r2e import parse_action, read_r2e_trajectories
from engine.errors import DatasetError
from engine.events.types import EVENT_ADAPTER, TrajectoryFinished
from engine.types import TerminationReason, TestOutcome, Verdict
from tests.unit.datasets.importers import rows


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


def test_edited_tests_of_an_imported_patch_are_findings(tmp_path: Path) -> None:
    def patch(*paths: str) -> str:
        hunk = "@@ -1 +1 @@\n-a\n+b\n"
        return "".join(f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n{hunk}" for path in paths)

    ds = record()["ds"] | {"patch": patch("pkg/testing.py")}
    edited = patch("pkg/code.py", "pkg/testing.py", "tests/test_a.py", "setup.cfg")
    trajectories = read_r2e_trajectories(write(tmp_path, record(ds=ds, output_patch=edited), record()))
    first, second = (
        [*events_of(trajectory, first_seq=1, time=0.0)][-1].model_dump()["findings"]
        for trajectory in trajectories
    )
    assert [(finding["kind"], finding["detail"]) for finding in first] == [
        ("tests_edited", "tests/test_a.py"),
        ("configuration_edited", "setup.cfg"),
    ]
    assert second == [], "a patch that cannot be read edits nothing that is known"


def test_token_limit_is_no_submission_and_missing_reward_is_no_verdict(tmp_path: Path) -> None:
    path = write(tmp_path, record(exit_reason="token_limit", reward=None))
    (trajectory,) = read_r2e_trajectories(path)
    assert trajectory.termination is TerminationReason.MAX_CONTEXT
    assert (trajectory.reward, trajectory.verdict) == (None, None)


def test_call_arguments_are_parsed_without_loss() -> None:
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
        ({"ds": {**record()["ds"], "FAIL_TO_PASS": 7}}, "FAIL_TO_PASS"),
        ({"ds": {**record()["ds"], "patch": None}}, "patch"),
    ],
)
def test_malformed_lines_name_row_and_field(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(DatasetError) as raised:
        list(read_r2e_trajectories(write(tmp_path, record(), record(**changes))))
    assert (raised.value.row, raised.value.field) == (1, field)


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (3, "not an object of fields"),
        ({}, ".thought: missing or no text"),
        ({"action": None}, ".action: missing or no text"),
        ({"token_usage_prompt": "many"}, ".token_usage_prompt: no number in range: many"),
        ({"token_usage_completion": 1e300}, ".token_usage_completion: no number in range"),
        ({"env_exec_time": float("nan")}, REPLACED),
        ({"llm_exec_time": -1}, ".llm_exec_time: no number in range: -1"),
        ({"observation": "\ud800\0"}, REPLACED),
    ],
)
def test_odd_field_of_a_step_is_replaced_and_named(tmp_path: Path, step: Any, problem: str) -> None:
    good = record()["trajectory_steps"][0]
    odd = {**good, **step} if step and isinstance(step, dict) else step
    (trajectory,) = read_r2e_trajectories(write(tmp_path, record(trajectory_steps=[good, odd, good])))
    first, second, third = trajectory.steps
    assert first.error == third.error == "the action is empty"
    assert second.error.startswith("trajectory_steps.1")
    assert problem in second.error
    for event in events_of(trajectory, first_seq=1, time=0.0):
        EVENT_ADAPTER.validate_json(event.model_dump_json())


@pytest.mark.parametrize(
    ("reward", "verdict"),
    [
        (1, Verdict.PASSED),
        (0, Verdict.FAILED),
        (None, None),
        (-1, None),
        (float("nan"), None),
        ("high", None),
    ],
)
def test_only_0_and_1_are_rewards(tmp_path: Path, reward: Any, verdict: Verdict | None) -> None:
    (trajectory,) = read_r2e_trajectories(write(tmp_path, record(reward=reward)))
    assert (trajectory.verdict, trajectory.reward) == (verdict, None if verdict is None else float(reward))
    known = verdict is not None or reward is None
    named = "reward" in trajectory.metadata or trajectory.metadata.get("replaced_in") == ["reward"]
    assert named is not known, "a person sees what could not be read"


def test_line_with_a_deeply_nested_field_is_left_out(tmp_path: Path) -> None:
    sound = json.dumps(record())
    odd = sound.replace('"output_patch"', f'"exp": {"[" * 600}{"]" * 600}, "output_patch"')
    path = tmp_path / "t.jsonl"
    path.write_text(f"{sound}\n{odd}\n{sound}\n")
    left_out: list[tuple[int, str]] = []
    trajectories = list(read_r2e_trajectories(path, lambda *rejected: left_out.append(rejected)))
    assert [trajectory.line for trajectory in trajectories] == [1, 3]
    assert left_out == [(2, "nested more than 100 levels deep (row 1)")]


def test_a_missing_patch_is_unknown_and_an_empty_one_is_known(tmp_path: Path) -> None:
    missing = {name: value for name, value in record().items() if name != "output_patch"}
    path = write(tmp_path, missing, record(output_patch=7), record(output_patch=""))
    trajectories = list(read_r2e_trajectories(path))
    assert [t.patch for t in trajectories] == [None, None, ""]
    ends = [list(events_of(t, first_seq=1, time=0.0))[-1].model_dump() for t in trajectories]
    assert [end["imported"].get("patch", "known") for end in ends] == [None, None, "known"]


def test_replaced_values_of_a_record_are_named(tmp_path: Path) -> None:
    (parsed,) = read_r2e_trajectories(write(tmp_path, record(exp_name="\ud800", verifier_prob=float("nan"))))
    assert parsed.metadata["replaced_in"] == ["exp_name", "verifier_prob"]
    assert (parsed.metadata["exp_name"], parsed.metadata["verifier_prob"]) == ("\ufffd", None)


def converted(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """Run the command; return its exit code, stdout and stderr."""
    monkeypatch.setattr("sys.argv", ["trajectories_r2e", str(path)])
    code = convert(read_r2e_trajectories, "R2E-Gym's trajectories")
    output = capsys.readouterr()
    return code, output.out, output.err


def test_command_leaves_out_invalid_lines_and_reports_the_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, record(), record(exit_reason="aliens"), 3, record())
    path.write_bytes(path.read_bytes() + b'{"ds": "\xff"}\n' + b"[" * 100_000)
    code, out, err = converted(path, monkeypatch, capsys)
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    events = [EVENT_ADAPTER.validate_python(line) for line in lines if "task" not in line]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.ref.index for event in events if isinstance(event, TrajectoryFinished)] == [0, 1]
    reported = [line.removeprefix(f"{path}: ") for line in err.splitlines()]
    assert reported[0].startswith(
        "1 line was left out; line 2: unknown reason 'aliens' (row 1, field 'exit_reason')"
    )
    assert reported[1].startswith("1 line was left out; line 3: not an object")
    assert reported[2].startswith("1 line was left out; line 5: not JSON: ")
    assert reported[3].startswith("1 line was left out; line 6: nested more than 100 levels deep")


def test_a_file_without_trajectories_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for records in ((), (record(ds=1),)):
        code, _, err = converted(write(tmp_path, *records), monkeypatch, capsys)
        assert code == 2
        assert "no line that is a trajectory\n" in err
    assert "row 0, field 'ds'" in err


def test_lines_that_are_left_out_are_counted_by_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.traj"
    path.write_text(json.dumps({"trajectory": [{"action": "ls"}] * 1_500}, indent=1))
    _, _, err = converted(path, monkeypatch, capsys)
    first, last = err.splitlines()
    assert first.startswith(f"{path}: 4,504 lines were left out; the first is line 1: not JSON: ")
    assert last.endswith("is it a single JSON document, such as a .traj file? Expected one object per line")


def test_r2e_gym_dataset_rows_become_tasks_named_by_their_commits(tmp_path: Path) -> None:
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
