"""Trajectories in Harbor's interchange format, with metrics per step; odd parts are marked on their step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine import reading
from engine.datasets.imported_trajectories import events_of
from engine.datasets.trajectories_atif import read_trajectories
from engine.errors import DatasetError
from engine.events.types import TrajectoryFinished
from engine.types import TerminationReason, ToolCall, Verdict

CASE = Path(__file__).parent / "cases" / "trajectories" / "atif.json"


def document(**changes: Any) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(CASE.read_text())
    return {**content, **changes}


def test_document_is_read_as_a_trajectory_without_loss() -> None:
    (parsed,) = read_trajectories(CASE)
    assert parsed.row.task.problem_statement == "Repair add()."
    first, second = parsed.steps
    assert (first.thought, first.call) == ("hm", ToolCall(name="bash", arguments={"command": "ls"}))
    assert (first.observation, first.prompt_tokens, first.generated_tokens) == ("a.py", 10, 5)
    assert (first.cost, parsed.cost, second.response) == (0.001, 0.001, "Done.")
    assert (parsed.termination, parsed.verdict, parsed.patch) == (TerminationReason.SUBMITTED, None, None)
    assert (parsed.metadata["model"], parsed.metadata["session_id"]) == ("m", "s-1")
    *_, finished = events_of(parsed, first_seq=1, time=0.0)
    assert isinstance(finished, TrajectoryFinished)
    assert finished.imported is not None
    assert finished.imported["agent"]["name"] == "toy-agent"


def test_outcomes_in_extra_are_read(tmp_path: Path) -> None:
    extra = {"resolved": 0, "model_patch": "x", "instance_id": "i-1", "exit_status": "exit_context"}
    path = tmp_path / "many.json"
    path.write_text(json.dumps([document(extra=extra), document(extra=extra)]))
    first, second = read_trajectories(path)
    assert (first.index, second.index, first.row.task.instance_id) == (0, 1, "i-1")
    assert (first.verdict, first.patch, first.termination) == (
        Verdict.FAILED,
        "x",
        TerminationReason.MAX_CONTEXT,
    )


def test_parallel_calls_become_steps_with_the_metrics_on_the_first(tmp_path: Path) -> None:
    calls = [{"tool_call_id": name, "function_name": "bash", "arguments": {"n": name}} for name in "ab"]
    results = [{"source_call_id": name, "content": f"to {name}"} for name in "ba"]
    steps = [
        {"source": "user", "message": "Mend it."},
        {"source": "agent", "message": "", "tool_calls": calls, "observation": {"results": results},
         "metrics": {"completion_tokens": 7, "prompt_tokens": float("nan")}},
        {"source": "agent", "message": [{"type": "image", "source": {}}, {"type": "text", "text": "End"}],
         "metrics": {"completion_tokens": 2}},
        "odd",
    ]  # fmt: skip
    path = tmp_path / "one.jsonl"
    path.write_text(f"{json.dumps(document(steps=steps, final_metrics=None))}\n{{\n")
    with pytest.raises(DatasetError, match="not JSON"):
        list(read_trajectories(path))
    left_out: list[tuple[int, str]] = []
    (trajectory,) = read_trajectories(path, lambda *rejected: left_out.append(rejected))
    assert left_out == [(2, "not JSON")]
    assert [(step.observation, step.generated_tokens) for step in trajectory.steps] == [
        ("to a", 7), ("to b", 0), ("odd", 2),
    ]  # fmt: skip
    assert [bool(step.error) for step in trajectory.steps] == [False, False, True]
    assert (trajectory.steps[0].prompt_tokens, trajectory.cost) == (0, None)


def test_lines_beyond_the_limits_are_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_LINE", 10 << 10)
    monkeypatch.setattr(reading, "MAX_VALUES", 300)
    sound = json.dumps(document())
    levels = f'{sound[:-1]}, "deep": {"[" * 150}{"]" * 150}}}'
    path = tmp_path / "many.jsonl"
    many = json.dumps(document(notes=[0] * 301))
    path.write_text(
        "\n".join([sound, levels, json.dumps(document(notes="x" * (11 << 10))), many, sound, "{"])
    )
    left_out: list[tuple[int, str]] = []
    trajectories = list(read_trajectories(path, lambda *rejected: left_out.append(rejected)))
    assert [trajectory.line for trajectory in trajectories] == [1, 5]
    assert left_out == [
        (2, "nested more than 100 levels deep"),
        (3, "longer than 0 MiB"),
        (4, "more than 300 values"),
        (6, "not JSON"),
    ]


def test_a_document_beyond_the_limits_is_not_read_as_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_VALUES", 300)
    path = tmp_path / "one.json"
    path.write_text(json.dumps(document(notes=[0] * 301), indent=1))
    left_out: list[tuple[int, str]] = []
    with pytest.raises(DatasetError, match="more than 300 values"):
        list(read_trajectories(path, lambda *rejected: left_out.append(rejected)))
    assert left_out == []


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"trajectory": []}))
    with pytest.raises(DatasetError, match="steps: expected a list"):
        list(read_trajectories(path))
