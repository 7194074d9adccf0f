"""Reader of trajectories in R2E-Gym's JSONL format, converted without loss of steps.

As a command, ``python -m engine.datasets.trajectories_r2e FILE``, it prints NDJSON for an importer:

- one line ``{"task": {...}, "answer": {...}, "split": "imported"}`` per task (the fields of
  ``engine.types.Task`` and ``TaskAnswer``), before its first trajectory;
- then the events of each trajectory as ``engine.events.types`` defines them: ``trajectory_started``,
  ``step_finished`` …, ``trajectory_finished``; iteration 0, phase ``train``, ``seq`` from 1, epoch 1,
  ``time`` the file's modification time (the format has no timestamps).

A line that is no trajectory is reported on stderr and left out; a file without any ends it with exit code 2.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from engine.datasets.importers.fields import Row
from engine.datasets.importers.formats import r2e_gym
from engine.datasets.importers.formats.swe_row import read_row
from engine.datasets.store import with_content_id
from engine.errors import DatasetError
from engine.events.types import (
    StepFinished,
    TestOutcomeRecord,
    TrajectoryFinished,
    TrajectoryRef,
    TrajectoryStarted,
)
from engine.types import (
    GradeRule,
    Step,
    TaskRow,
    TerminationReason,
    TestKind,
    TestOutcome,
    TestResult,
    ToolCall,
    Verdict,
)

PHASE = "train"
_TERMINATIONS: Mapping[str, TerminationReason] = {
    "agent": TerminationReason.SUBMITTED,
    "max_step_limit": TerminationReason.MAX_STEPS,
    "agent_max_step_limit": TerminationReason.MAX_STEPS,
    "abs_step_limit": TerminationReason.MAX_STEPS,
    "token_limit": TerminationReason.MAX_CONTEXT,
    "traj_time_limit": TerminationReason.ROLLOUT_TIMEOUT,
    "llm_query_error": TerminationReason.MODEL_ERROR,
}
_SUMMARY = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (.+)$", re.MULTILINE)
_OUTCOMES = {"XFAIL": TestOutcome.XFAIL, "XPASS": TestOutcome.XPASS}


Reject = Callable[[int, str], None]
"""Takes a line that is left out, counted from 1, and the reason."""


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
    patch: str
    reward: float | None
    verdict: Verdict | None
    tests: tuple[TestResult, ...]
    """Outcomes of the required tests from the log; empty when the log could not be parsed."""
    test_log: str
    grading_seconds: float
    metadata: Mapping[str, Any]
    """Data without a field of its own: ``exp_name``, ``exit_reason``, limits, ``agent_args``."""


def read_r2e_trajectories(path: Path, reject: Reject | None = None) -> Iterator[ImportedTrajectory]:
    """Yield trajectories of a file, in order.

    Args:
        reject: called for each line that is left out; None raises its error instead.

    Raises:
        DatasetError: a line is malformed; names the line (as ``row``, from 0) and the field.
        OSError: the file cannot be read.
    """
    seen: Counter[str] = Counter()
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if not line.strip():
                continue
            try:
                record = _parse(line, number)
                row = _task_row(record, number)
                found = _trajectory(record, number, row, seen[row.task.id])
            except DatasetError as error:
                if reject is None:
                    raise
                reject(number + 1, str(error))
                continue
            yield found
            seen[row.task.id] += 1


def _parse(line: bytes, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"not JSON: {error}", row=number) from error
    if not isinstance(record, dict):
        raise DatasetError("not an object", row=number)
    return record


def _task_row(record: Mapping[str, Any], number: int) -> TaskRow:
    published = _get(record, "ds", dict, number)
    image = str(record.get("docker_image") or "")
    if published.get("parsed_commit_content") is not None:
        return _commit_row({"docker_image": image, **published}, number)
    row = read_row(published, number=number)
    task = row.task(image=image or row.image, metadata={"format": "r2e-gym"})
    answer = row.answer(metadata={"FAIL_TO_FAIL": published.get("FAIL_TO_FAIL", [])})
    return with_content_id(TaskRow(task=task, answer=answer, split="imported"))


def _commit_row(published: Row, number: int) -> TaskRow:
    """Return a task of R2E-Gym's own datasets, whose rows are commits."""
    try:
        found = r2e_gym.convert(published)
    except DatasetError as error:
        raise DatasetError(str(error), row=number, field=f"ds.{error.field}") from None
    return with_content_id(TaskRow(task=found.task, answer=found.answer, split="imported"))


def _trajectory(record: Mapping[str, Any], number: int, row: TaskRow, index: int) -> ImportedTrajectory:
    reason = _get(record, "exit_reason", str, number)
    if reason not in _TERMINATIONS:
        raise DatasetError(f"unknown reason '{reason}'", row=number, field="exit_reason")
    steps = _get(record, "trajectory_steps", list, number)
    reward = record.get("reward")
    if reward is not None and not isinstance(reward, int | float):
        raise DatasetError("not a number", row=number, field="reward")
    log = str(record.get("test_output") or "")
    kept = ("exp_name", "exit_reason", "agent_args", "max_steps", "max_token_limit", "verifier_prob")
    return ImportedTrajectory(
        line=number + 1,
        row=row,
        index=index,
        steps=tuple(_step(step, position, number) for position, step in enumerate(steps)),
        termination=_TERMINATIONS[reason],
        patch=str(record.get("output_patch") or ""),
        reward=None if reward is None else float(reward),
        verdict=None if reward is None else Verdict.PASSED if reward >= 1 else Verdict.FAILED,
        tests=parse_test_log(row, log),
        test_log=log,
        grading_seconds=float(record.get("reward_calc_time") or 0.0),
        metadata={name: record[name] for name in kept if record.get(name) is not None},
    )


def _step(step: Any, position: int, number: int) -> Step:
    where = f"trajectory_steps.{position}"
    if not isinstance(step, dict):
        raise DatasetError("not an object", row=number, field=where)
    texts = {name: _get(step, name, str, number, where) for name in ("thought", "action", "observation")}
    call, error = parse_action(texts["action"])
    return Step(
        index=position,
        thought=re.sub(r"</?think>", "", texts["thought"]).strip(),
        # The format keeps no raw response; these are its two parts, unchanged.
        response="\n\n".join(text for text in (texts["thought"], texts["action"]) if text),
        call=call,
        error=error,
        observation=texts["observation"],
        done=bool(step.get("done")),
        prompt_tokens=max(0, int(step.get("token_usage_prompt") or 0)),
        generated_tokens=max(0, int(step.get("token_usage_completion") or 0)),
        thinking_tokens=None,  # the format does not count them
        model_seconds=float(step.get("llm_exec_time") or 0.0),
        tool_seconds=float(step.get("env_exec_time") or 0.0),
    )


def parse_action(action: str) -> tuple[ToolCall | None, str]:
    """Return the tool call of an XML action, values unchanged except for the layout newline on both sides."""
    opening = re.search(r"<function\s*=\s*([^>\n]+?)\s*>", action)
    if opening is None:
        return None, "no tool call in the action" if action.strip() else "the action is empty"
    pattern = r"<parameter\s*=\s*([^>\n]+?)\s*>(.*?)</parameter>(?=\s*(?:<parameter\s*=|</function>))"
    arguments = {}
    for name, value in re.findall(pattern, action[opening.end() :], re.DOTALL):
        layout = len(value) >= 2 and value.startswith("\n") and value.endswith("\n")
        arguments[name] = value[1:-1] if layout else value
    return ToolCall(name=opening[1], arguments=arguments), ""


def parse_test_log(row: TaskRow, log: str) -> tuple[TestResult, ...]:
    """Return the required tests from pytest's summary lines; no results when the log has none of them."""
    shown = _by_map(log) if row.answer.grade_rule is GradeRule.MAP_EQUAL else _by_summary(log)
    required = [(test, TestKind.FAIL_TO_PASS) for test in row.answer.fail_to_pass]
    required += [(test, TestKind.PASS_TO_PASS) for test in row.answer.pass_to_pass]
    if not any(test in shown for test, _ in required):
        return ()
    return tuple(
        TestResult(test_id=test, kind=kind, outcome=shown.get(test, TestOutcome.MISSING))
        for test, kind in required
    )


def _by_map(log: str) -> dict[str, TestOutcome]:
    return {name: TestOutcome(status.lower()) for name, status in r2e_gym.parse_log(log).items()}


def _by_summary(log: str) -> dict[str, TestOutcome]:
    shown: dict[str, TestOutcome] = {}
    for word, rest in _SUMMARY.findall(log):
        outcome = _OUTCOMES.get(word) or TestOutcome(word.lower())
        shown[rest.strip()] = outcome
        shown.setdefault(rest.partition(" - ")[0].strip(), outcome)
    return shown


def _get(record: Mapping[str, Any], name: str, kind: type[Any], number: int, where: str = "") -> Any:
    value = record.get(name)
    if not isinstance(value, kind):
        field = f"{where}.{name}" if where else name
        raise DatasetError(f"missing or not of type {kind.__name__}", row=number, field=field)
    return value


def events_of(trajectory: ImportedTrajectory, *, first_seq: int, time: float) -> Iterator[BaseModel]:
    """Yield the events of a trajectory, ``seq`` rising from ``first_seq``."""
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
        patch=trajectory.patch,
        tests=[TestOutcomeRecord(**asdict(test)) for test in trajectory.tests],
        test_log=trajectory.test_log,
        prompt_tokens=steps[0].prompt_tokens if steps else 0,
        generated_tokens=sum(step.generated_tokens for step in steps),
        thinking_tokens=None,
        model_seconds=model,
        tool_seconds=tools,
        grading_seconds=trajectory.grading_seconds,
        total_seconds=model + tools + trajectory.grading_seconds,
    )


def print_ndjson(trajectories: Iterable[ImportedTrajectory], *, time: float) -> int:
    """Write the lines that the module's docstring describes to standard output; return their trajectories."""
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
    """Run a command that converts the file that it is given; return its exit code.

    Args:
        read: reads the file.
        content: what the lines of the file are, for the command's help.
    """
    parser = argparse.ArgumentParser(description=f"Convert {content} to events.")
    parser.add_argument("file", type=Path, help=f"JSON Lines of {content}")
    path: Path = parser.parse_args().file

    def reject(line: int, reason: str) -> None:
        sys.stderr.write(f"{path}, line {line}: {reason}; left out\n")

    try:
        num_written = print_ndjson(read(path, reject), time=path.stat().st_mtime)
    except (DatasetError, OSError) as error:
        sys.stderr.write(f"{path}: {error}\n")
        return 2
    if not num_written:
        sys.stderr.write(f"{path} has no line that is a trajectory\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(convert(read_r2e_trajectories, "R2E-Gym's trajectories"))
