"""Stored trajectories: round trips, earlier formats, malformed data."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import DatasetError
from engine.rollout.serialise import read_trajectories, trajectory_from_dict, trajectory_to_dict
from engine.tokens import TokenRecord
from engine.types import (
    CounterfactualOutcome,
    Grade,
    OpeningMessage,
    ReplayDifference,
    ReplaySummary,
    Step,
    TamperFinding,
    TerminationReason,
    TestResult,
    Timings,
    ToolCall,
    Trajectory,
    Verdict,
)
from tests.builders.rollout_builders import make_key

VALUES = st.one_of(st.text(max_size=5), st.integers(), st.booleans(), st.lists(st.integers(), max_size=2))
CALLS = st.none() | st.builds(
    ToolCall, name=st.text(max_size=5), arguments=st.dictionaries(st.text(max_size=3), VALUES, max_size=2)
)
FLOATS = st.floats(allow_nan=False)
TEXT = st.text(max_size=8)
STEPS = st.builds(
    Step, index=st.integers(0), thought=TEXT, response=TEXT, call=CALLS, observation=TEXT, error=TEXT,
    exit_code=st.none() | st.integers(), done=st.booleans(), model_seconds=FLOATS,
    prompt_tokens=st.integers(0), tool_seconds=FLOATS,
    cached_tokens=st.integers(0), thinking_tokens=st.none() | st.integers(0), cost=st.none() | FLOATS,
    provider_state=st.none() | st.dictionaries(st.text(max_size=3), VALUES, max_size=2),
)  # fmt: skip
FINDINGS = st.lists(
    st.builds(TamperFinding, detail=TEXT, step=st.none() | st.integers(0)), max_size=2
).map(tuple)  # fmt: skip
TESTS = st.lists(st.builds(TestResult, seconds=FLOATS), max_size=2).map(tuple)
GRADES = st.none() | st.builds(
    Grade, reward=st.none() | FLOATS, tests=TESTS, log=TEXT, seconds=FLOATS,
    counterfactual=st.none() | st.sampled_from(CounterfactualOutcome), extra_runs=st.integers(0, 9),
    extra_seconds=FLOATS, whole_log=st.binary(max_size=8), findings=FINDINGS, detail=TEXT,
    reused=st.booleans(),
)  # fmt: skip
TOKENS = st.builds(
    TokenRecord,
    ids=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=3, max_size=3),
    mask=st.lists(st.booleans(), min_size=3, max_size=3),
    logprobs=st.lists(st.floats(width=32, allow_nan=False), min_size=3, max_size=3),
) | st.just(TokenRecord())
DIFFERENCES = st.builds(ReplayDifference, recorded=TEXT, found=TEXT, is_minor=st.booleans())
REPLAYS = st.none() | st.builds(ReplaySummary, differences=st.lists(DIFFERENCES, max_size=2).map(tuple))
TRAJECTORIES = st.builds(
    Trajectory, key=st.just(make_key()), steps=st.lists(STEPS, max_size=3).map(tuple), grade=GRADES,
    tokens=TOKENS, timings=st.builds(Timings, queue=FLOATS, pull=FLOATS), patch=TEXT, error=TEXT,
    failure=TEXT, attempts=st.integers(1), prompt=TEXT, prompt_hash=TEXT,
    opening=st.lists(st.builds(OpeningMessage, role=TEXT, content=TEXT), max_size=2).map(tuple),
    replay=REPLAYS, cost=st.none() | FLOATS, findings=FINDINGS,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(TRAJECTORIES)
def test_trajectories_round_trip_through_json(trajectory: Trajectory) -> None:
    data = json.loads(json.dumps(trajectory_to_dict(trajectory)))
    back = trajectory_from_dict(data)
    assert _comparable(back) == _comparable(trajectory)
    assert back == trajectory


def _comparable(value: Any) -> Any:
    """Return a value with its types, so that an enum differs from its text."""
    if dataclasses.is_dataclass(value):
        return {f.name: _comparable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return (value.dtype, value.tolist())
    if isinstance(value, tuple):
        return (tuple, [_comparable(item) for item in value])
    return (type(value), value) if isinstance(value, Enum) else value


@pytest.mark.parametrize("line", ["[]", "{}", "{", '{"format": "trainyard.trajectory/1"}'])
def test_malformed_lines_are_refused_by_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(DatasetError, match="t.jsonl line 1"):
        list(read_trajectories(path))


def test_unknown_fields_are_refused() -> None:
    trajectory = Trajectory(key=make_key(), steps=(), termination=TerminationReason.SUBMITTED)
    with pytest.raises(DatasetError, match="surprise"):
        trajectory_from_dict({**trajectory_to_dict(trajectory), "surprise": 1})


def test_token_lists_of_earlier_versions_are_read() -> None:
    tokens = TokenRecord(ids=[1, 2], mask=[0, 1], logprobs=[0.0, -0.5], versions=[-1, 3], steps=[-1, 0])
    trajectory = Trajectory(key=make_key(), steps=(), termination=TerminationReason.SUBMITTED, tokens=tokens)
    lists = {"ids": [1, 2], "mask": [0, 1], "logprobs": [0.0, -0.5], "versions": [-1, 3], "steps": [-1, 0]}
    earlier = {**trajectory_to_dict(trajectory), "format": "trainyard.trajectory/1", "tokens": lists}
    assert trajectory_from_dict(json.loads(json.dumps(earlier))) == trajectory


def test_flaky_counterfactuals_of_earlier_versions_are_read_as_unproven() -> None:
    trajectory = Trajectory(
        key=make_key(),
        steps=(),
        termination=TerminationReason.SUBMITTED,
        grade=Grade(verdict=Verdict.PASSED, reward=1.0, counterfactual=CounterfactualOutcome.CONFIRMED),
    )
    earlier = json.dumps(trajectory_to_dict(trajectory)).replace('"confirmed"', '"flaky"')
    read = trajectory_from_dict(json.loads(earlier))
    assert read.grade is not None
    assert read.grade.counterfactual is CounterfactualOutcome.UNPROVEN


@pytest.mark.parametrize("tokens", ["%%%", "VFlUQg==", 5, {"ids": [1], "mask": []}, {"surprise": []}])
def test_damaged_tokens_are_refused(tokens: Any) -> None:
    trajectory = Trajectory(key=make_key(), steps=(), termination=TerminationReason.SUBMITTED)
    with pytest.raises(DatasetError, match="malformed"):
        trajectory_from_dict({**trajectory_to_dict(trajectory), "tokens": tokens})
