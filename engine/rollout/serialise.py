"""Lossless JSON lines of trajectories: Trainyard's own export, read by replay and analyses.

One object per line, with the field names of ``engine.types``. Unknown fields are refused.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from engine.errors import DatasetError
from engine.events.token_block import decode, encode
from engine.tokens import TokenRecord
from engine.types import (
    CounterfactualOutcome,
    FindingKind,
    Grade,
    OpeningMessage,
    ReplayDifference,
    ReplaySummary,
    RolloutKey,
    Step,
    TamperFinding,
    TerminationReason,
    TestKind,
    TestOutcome,
    TestResult,
    Timings,
    ToolCall,
    Trajectory,
    Verdict,
)

FORMAT = "trainyard.trajectory/2"
_WITH_LISTS = "trainyard.trajectory/1"
"""Format of earlier versions, with tokens as lists; still readable."""


def trajectory_to_dict(trajectory: Trajectory) -> dict[str, Any]:
    """Return a trajectory as plain data: sequences as lists, tokens as a block in base64."""
    grade = trajectory.grade
    return {
        "format": FORMAT,
        "key": _plain(trajectory.key),
        "termination": trajectory.termination.value,
        "error": trajectory.error,
        "failure": trajectory.failure,
        "attempts": trajectory.attempts,
        "prompt": trajectory.prompt,
        "prompt_hash": trajectory.prompt_hash,
        "opening": [_plain(message) for message in trajectory.opening],
        "cost": trajectory.cost,
        "replay": None if trajectory.replay is None else asdict(trajectory.replay),
        "steps": [{**_plain(step), "call": _plain_call(step.call)} for step in trajectory.steps],
        "patch": trajectory.patch,
        "grade": None if grade is None else _plain_grade(grade),
        "findings": [_plain(finding) for finding in trajectory.findings],
        "tokens": base64.b64encode(encode(trajectory.tokens)).decode(),
        "timings": _plain(trajectory.timings),
    }


def trajectory_from_dict(data: Mapping[str, Any]) -> Trajectory:
    """Parse the output of ``trajectory_to_dict``, of this version or an earlier one.

    Raises:
        DatasetError: another format, or a field is missing or unknown.
    """
    if data.get("format") not in (FORMAT, _WITH_LISTS):
        raise DatasetError(f"not a stored trajectory: format is {data.get('format')!r}, expected '{FORMAT}'")
    rest = {name: value for name, value in data.items() if name != "format"}
    try:
        rest["key"] = RolloutKey(**data["key"])
        rest["termination"] = TerminationReason(data["termination"])
        rest["steps"] = tuple(_step(step) for step in data["steps"])
        rest["grade"] = None if data["grade"] is None else _grade(data["grade"])
        rest["tokens"] = _tokens(data["tokens"])
        rest["timings"] = Timings(**data["timings"])
        rest["findings"] = _findings(data.get("findings", ()))
        rest["replay"] = _replay(data.get("replay"))
        rest["opening"] = tuple(OpeningMessage(**message) for message in data.get("opening", ()))
        return Trajectory(**rest)
    except (KeyError, TypeError, ValueError) as error:
        raise DatasetError(f"the stored trajectory is malformed: {error!r}") from error


def write_trajectories(path: Path, trajectories: Iterable[Trajectory]) -> int:
    """Write a JSONL file, replacing it; return the number of trajectories."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for trajectory in trajectories:
            file.write(json.dumps(trajectory_to_dict(trajectory)) + "\n")
            count += 1
    return count


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Read a JSONL file line by line.

    Raises:
        DatasetError: a line is not a stored trajectory; the message names the line.
    """
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                data = json.loads(line)
                if not isinstance(data, dict):
                    raise DatasetError("not an object")
                yield trajectory_from_dict(data)
            except (ValueError, DatasetError) as error:
                raise DatasetError(f"{path.name} line {number}: {error}") from error


def _plain(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _plain_call(call: ToolCall | None) -> dict[str, Any] | None:
    return None if call is None else {"name": call.name, "arguments": dict(call.arguments)}


def _plain_grade(grade: Grade) -> dict[str, Any]:
    return {
        **_plain(grade),
        "tests": [_plain(test) for test in grade.tests],
        "whole_log": base64.b64encode(grade.whole_log).decode(),
        "findings": [_plain(finding) for finding in grade.findings],
    }


def _findings(rows: Iterable[Mapping[str, Any]]) -> tuple[TamperFinding, ...]:
    return tuple(TamperFinding(**{**row, "kind": FindingKind(row["kind"])}) for row in rows)


def _replay(data: Mapping[str, Any] | None) -> ReplaySummary | None:
    if data is None:
        return None
    return ReplaySummary(
        **{**data, "differences": tuple(ReplayDifference(**item) for item in data["differences"])}
    )


def _tokens(data: str | Mapping[str, Any]) -> TokenRecord:
    return decode(base64.b64decode(data, validate=True)) if isinstance(data, str) else TokenRecord(**data)


def _step(data: Mapping[str, Any]) -> Step:
    call = None if data["call"] is None else ToolCall(**data["call"])
    return Step(**{**data, "call": call})


def _grade(data: Mapping[str, Any]) -> Grade:
    tests = tuple(
        TestResult(**{**test, "kind": TestKind(test["kind"]), "outcome": TestOutcome(test["outcome"])})
        for test in data["tests"]
    )
    whole = base64.b64decode(data.get("whole_log", ""))
    rest = {"tests": tests, "whole_log": whole, "findings": _findings(data.get("findings", ()))}
    if (checked := data.get("counterfactual")) is not None:
        rest["counterfactual"] = CounterfactualOutcome(checked)
    return Grade(**{**data, **rest, "verdict": Verdict(data["verdict"])})
