"""Reader of trajectories in R2E-Gym's JSONL format, converted without loss of steps.

As a command, ``python -m engine.datasets.trajectories_r2e FILE``, it prints the NDJSON that
``engine.datasets.imported_trajectories`` describes.

A line that is not a trajectory is reported on stderr and left out; without any trajectory the exit code is 2.
An unreadable field of a step is left out and named in the step's ``error``. An unreadable ``reward`` or
``output_patch`` of a trajectory counts as unknown and stays in the metadata.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.datasets.conversations.base import REPLACED, storable, storable_fields
from engine.datasets.conversations.outcomes import truth, verdict_of
from engine.datasets.imported_trajectories import ImportedTrajectory, Reject, convert
from engine.datasets.importers.fields import Row
from engine.datasets.importers.fields import number as find_number
from engine.datasets.importers.formats import r2e_gym
from engine.datasets.importers.formats.swe_row import read_row
from engine.datasets.store import with_content_id
from engine.errors import DatasetError
from engine.reading import LimitError, parse_bounded, read_bounded_lines
from engine.types import (
    GradeRule,
    OpeningMessage,
    Step,
    TaskRow,
    TerminationReason,
    TestKind,
    TestOutcome,
    TestResult,
    ToolCall,
)

_TERMINATIONS: Mapping[str, TerminationReason] = {
    "agent": TerminationReason.SUBMITTED,
    "max_step_limit": TerminationReason.MAX_STEPS,
    "agent_max_step_limit": TerminationReason.MAX_STEPS,
    "abs_step_limit": TerminationReason.MAX_STEPS,
    "token_limit": TerminationReason.MAX_CONTEXT,
    "traj_time_limit": TerminationReason.ROLLOUT_TIMEOUT,
    "llm_query_error": TerminationReason.MODEL_ERROR,
}
_READ = frozenset({"trajectory_steps", "problem_statement", "ds"})
"""Fields that are converted, and not kept in the metadata."""
_READ_IF_VALID: Mapping[str, Callable[[Any], bool]] = {
    "reward": lambda value: value is None or truth(value) is not None,
    "output_patch": lambda value: value is None or isinstance(value, str),
    "test_output": lambda value: value is None or isinstance(value, str),
}
"""Fields that are converted if their value is valid; field → check of the value."""
_TEXTS = ("thought", "action", "observation")
_NUMBERS = ("token_usage_prompt", "token_usage_completion", "llm_exec_time", "env_exec_time")
_MAX_NUMBER = 2**31
_SUMMARY = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (.+)$", re.MULTILINE)
_OUTCOMES = {"XFAIL": TestOutcome.XFAIL, "XPASS": TestOutcome.XPASS}


def read_r2e_trajectories(path: Path, reject: Reject | None = None) -> Iterator[ImportedTrajectory]:
    """Yield trajectories of a file, in order.

    Args:
        reject: called for each line that is left out; None raises its error instead.

    Raises:
        DatasetError: a line is malformed; names the line (as ``row``, from 0) and the field.
        OSError, EOFError, zlib.error: the file cannot be read to its end.
    """
    seen: Counter[str] = Counter()
    for number, line, problem in read_bounded_lines(path):
        try:
            if problem:
                raise DatasetError(problem, row=number - 1)
            record = _parse(line, number - 1)
            row = _task_row(record, number - 1)
            trajectory = _trajectory(record, number - 1, row, seen[row.task.id])
        except DatasetError as error:
            if reject is None:
                raise
            reject(number, str(error))
            continue
        yield trajectory
        seen[row.task.id] += 1


def _parse(line: bytes, number: int) -> dict[str, Any]:
    try:
        record = parse_bounded(line)
        if not isinstance(record, dict):
            raise DatasetError("not an object", row=number)
        steps = record.pop("trajectory_steps", None)  # each is made storable by itself
        return {**storable_fields(record), "trajectory_steps": steps}
    except LimitError as error:
        raise DatasetError(str(error), row=number) from error
    except ValueError as error:
        raise DatasetError(f"not JSON: {error}", row=number) from error


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
    """Return the task of a commit, which is a row of R2E-Gym's own datasets."""
    try:
        converted = r2e_gym.convert(published)
    except DatasetError as error:
        raise DatasetError(str(error), row=number, field=f"ds.{error.field}") from None
    return with_content_id(TaskRow(task=converted.task, answer=converted.answer, split="imported"))


def _trajectory(record: Mapping[str, Any], number: int, row: TaskRow, index: int) -> ImportedTrajectory:
    reason = _get(record, "exit_reason", str, number)
    if reason not in _TERMINATIONS:
        raise DatasetError(f"unknown reason '{reason}'", row=number, field="exit_reason")
    steps = _get(record, "trajectory_steps", list, number)
    resolved = truth(record.get("reward"))
    log = log if isinstance(log := record.get("test_output"), str) else ""
    return ImportedTrajectory(
        line=number + 1,
        row=row,
        index=index,
        steps=tuple(_step(step, position) for position, step in enumerate(steps)),
        termination=_TERMINATIONS[reason],
        patch=patch if isinstance(patch := record.get("output_patch"), str) else None,
        reward=None if resolved is None else float(resolved),
        verdict=verdict_of(resolved),
        tests=parse_test_log(row, log),
        test_log=log,
        grading_seconds=max(0.0, find_number(record, "reward_calc_time") or 0.0),
        opening=_opening(record),
        metadata=_metadata(record),
    )


def _metadata(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not converted; the task's row is left out, as it includes the answer."""
    kept = {
        name: value
        for name, value in record.items()
        if name not in _READ and not (name in _READ_IF_VALID and _READ_IF_VALID[name](value))
    }
    environment = kept.get("env_args")
    if isinstance(environment, Mapping):
        kept["env_args"] = {name: value for name, value in environment.items() if name != "ds"}
    return kept


def _opening(record: Mapping[str, Any]) -> tuple[OpeningMessage, ...]:
    """Return the opening messages, built from the agent's arguments and the problem statement."""
    arguments = record.get("agent_args")
    if not isinstance(arguments, Mapping):
        return ()
    values = {"problem_statement": str(record.get("problem_statement") or ""), "working_dir": "/testbed"}
    texts = (("system", arguments.get("system_prompt")), ("user", arguments.get("instance_prompt")))
    return tuple(
        OpeningMessage(role=role, content=_filled(text, values if role == "user" else {}))
        for role, text in texts
        if isinstance(text, str)
    )


def _filled(template: str, values: Mapping[str, str]) -> str:
    """Fill a template's fields; unlike ``str.format``, never read attributes named by the file."""
    if not values:
        return template
    return re.sub(
        r"\{\{|\}\}|\{(\w+)\}",
        lambda match: values.get(match[1], match[0]) if match[1] else match[0][0],
        template,
    )


def _step(published: Any, position: int) -> Step:
    where = f"trajectory_steps.{position}"
    step = storable(published) if isinstance(published, dict) else {}
    problems = [] if step == published else [f"{where}: {REPLACED if step else 'not an object of fields'}"]
    texts, numbers = dict.fromkeys(_TEXTS, ""), dict.fromkeys(_NUMBERS, 0.0)
    for name in _TEXTS:
        if isinstance(value := step.get(name), str):
            texts[name] = value
        else:
            problems.append(f"{where}.{name}: missing or no text")
    for name in _NUMBERS:
        parsed = find_number(step, name)
        if parsed is not None and 0 <= parsed < _MAX_NUMBER:
            numbers[name] = parsed
        elif step.get(name) is not None:
            problems.append(f"{where}.{name}: no number in range: {str(step[name])[:80]}")
    call, error = parse_action(texts["action"])
    return Step(
        index=position,
        thought=re.sub(r"</?think>", "", texts["thought"]).strip(),
        # The format keeps no raw response; these are its two parts, unchanged.
        response="\n\n".join(text for text in (texts["thought"], texts["action"]) if text),
        call=call,
        error="; ".join(problems) or error,
        observation=texts["observation"],
        done=truth(step.get("done")) is True,
        prompt_tokens=int(numbers["token_usage_prompt"]),
        generated_tokens=int(numbers["token_usage_completion"]),
        thinking_tokens=None,  # the format does not count them
        model_seconds=numbers["llm_exec_time"],
        tool_seconds=numbers["env_exec_time"],
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


def _get(record: Mapping[str, Any], name: str, kind: type[Any], number: int) -> Any:
    value = record.get(name)
    if not isinstance(value, kind):
        raise DatasetError(f"missing or not of type {kind.__name__}", row=number, field=name)
    return value


if __name__ == "__main__":
    sys.exit(convert(read_r2e_trajectories, "R2E-Gym's trajectories"))
