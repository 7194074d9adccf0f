"""Imported trajectories of any format, and their conversion to the NDJSON that importers read.

- one line ``{"task": {...}, "answer": {...}, "split": "imported"}`` per task (the fields of
  ``engine.types.Task`` and ``TaskAnswer``), before its first trajectory;
- then the events of each trajectory as ``engine.events.types`` defines them: ``trajectory_started``,
  ``step_finished`` …, ``trajectory_finished``; iteration 0, phase ``train``, ``seq`` from 1, epoch 1,
  ``time`` the file's modification time (the formats have no timestamps).
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from engine.datasets.line_problems import LineProblems
from engine.datasets.paths import is_configuration, is_test_code
from engine.errors import DatasetError
from engine.events.types import (
    FindingRecord,
    OpeningMessageRecord,
    StepFinished,
    TestOutcomeRecord,
    TrajectoryFinished,
    TrajectoryRef,
    TrajectoryStarted,
)
from engine.patches.sections import split_patch
from engine.terminal import visible_text
from engine.types import FindingKind, OpeningMessage, Step, TaskRow, TerminationReason, TestResult, Verdict

PHASE = "train"
_DETAIL_CHARS = 200

Reject = Callable[[int, str], None]
"""Callback for a rejected line: its number (from 1) and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTrajectory:
    """One trajectory (line) of the file."""

    line: int
    """Line number, counted from 1."""
    row: TaskRow
    index: int
    """Position among the trajectories of the same task in the file."""
    steps: tuple[Step, ...]
    termination: TerminationReason
    patch: str | None
    """None if unknown, as distinct from an empty patch."""
    reward: float | None
    verdict: Verdict | None
    tests: tuple[TestResult, ...]
    """Outcomes of the required tests from the log; empty when the log could not be parsed."""
    test_log: str
    grading_seconds: float
    opening: tuple[OpeningMessage, ...]
    """Messages before the first response; empty if the file has none."""
    metadata: Mapping[str, Any]
    """Fields of the file without an attribute here, such as ``exp_name``, limits, ``agent_args``."""
    cost: float | None = None
    """US dollars of the whole trajectory; None if unknown."""
    error: str = ""
    """Error that ended the rollout; empty without one."""


def events_of(trajectory: ImportedTrajectory, *, first_seq: int, time: float) -> Iterator[BaseModel]:
    """Yield the events of a trajectory; ``seq`` counts up from ``first_seq``."""
    ref = TrajectoryRef(iteration=0, phase=PHASE, task_id=trajectory.row.task.id, index=trajectory.index)
    steps = trajectory.steps
    yield TrajectoryStarted(seq=first_seq, epoch=1, time=time, ref=ref)
    for offset, step in enumerate(steps, start=1):
        fields = {name: value for name, value in asdict(step).items() if name != "call"}
        yield StepFinished(
            seq=first_seq + offset,
            epoch=1,
            time=time,
            ref=ref,
            tool=step.call.name if step.call else "",
            arguments=dict(step.call.arguments) if step.call else {},
            **fields,
        )
    model, tools = sum(step.model_seconds for step in steps), sum(step.tool_seconds for step in steps)
    yield TrajectoryFinished(
        seq=first_seq + len(steps) + 1,
        epoch=1,
        time=time,
        ref=ref,
        termination=trajectory.termination,
        verdict=trajectory.verdict,
        reward=trajectory.reward,
        num_steps=len(steps),
        patch=trajectory.patch or "",
        cost=trajectory.cost,
        error=trajectory.error,
        findings=_findings(trajectory),
        tests=[TestOutcomeRecord(**asdict(test)) for test in trajectory.tests],
        test_log=trajectory.test_log,
        opening=[OpeningMessageRecord(**asdict(message)) for message in trajectory.opening],
        imported={**trajectory.metadata, **({"patch": None} if trajectory.patch is None else {})},
        prompt_tokens=steps[0].prompt_tokens if steps else 0,
        generated_tokens=sum(step.generated_tokens for step in steps),
        thinking_tokens=None,
        model_seconds=model,
        tool_seconds=tools,
        grading_seconds=trajectory.grading_seconds,
        total_seconds=model + tools + trajectory.grading_seconds,
    )


def _findings(trajectory: ImportedTrajectory) -> list[FindingRecord]:
    """Return the tests and test configuration that a patch edits; paths in the gold patch do not count."""
    answer = trajectory.row.answer
    gold = {path for part in split_patch(answer.gold_patch) for path in part.paths}
    tests = {*answer.test_files, *(path for part in split_patch(answer.test_patch) for path in part.paths)}
    edited = dict.fromkeys(path for part in split_patch(trajectory.patch or "") for path in part.paths)
    findings = []
    for path in edited:
        if path in gold:
            continue
        if path in tests or is_test_code(path):
            findings.append(FindingRecord(kind=FindingKind.TESTS_EDITED, detail=path[:_DETAIL_CHARS]))
        elif is_configuration(path):
            findings.append(FindingRecord(kind=FindingKind.CONFIGURATION_EDITED, detail=path[:_DETAIL_CHARS]))
    return findings


def print_ndjson(trajectories: Iterable[ImportedTrajectory], *, time: float) -> int:
    """Write trajectories to stdout in the form described above; return their number."""
    known: set[str] = set()
    seq, count = 1, 0
    for count, trajectory in enumerate(trajectories, start=1):  # noqa: B007
        row = trajectory.row
        if row.task.id not in known:
            known.add(row.task.id)
            line = {"task": asdict(row.task), "answer": asdict(row.answer), "split": row.split}
            sys.stdout.write(json.dumps(line) + "\n")
        for event in events_of(trajectory, first_seq=seq, time=time):
            sys.stdout.write(event.model_dump_json() + "\n")
            seq += 1
    return count


def convert(read: Callable[[Path, Reject], Iterable[ImportedTrajectory]], content: str) -> int:
    """Run the command that converts a file to events; return its exit code.

    Args:
        read: reads the file.
        content: description of the file's lines, for the command's help.
    """
    parser = argparse.ArgumentParser(description=f"Convert {content} to events.")
    parser.add_argument("file", type=Path, help=f"JSON Lines of {content}")
    path: Path = parser.parse_args().file

    left_out = LineProblems()
    try:
        num_written = print_ndjson(read(path, left_out.add), time=path.stat().st_mtime)
    except (DatasetError, OSError, EOFError, zlib.error) as error:
        sys.stderr.write(f"{visible_text(f'{path}: {error}')}\n")
        return 2
    finally:
        left_out.report(path)
    if not num_written:
        sys.stderr.write(f"{path} has no line that is a trajectory{left_out.hint}\n")
        return 2
    return 0
