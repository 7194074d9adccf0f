"""Funnel of a curation or hardening: stages, and examples of what was lost at each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.events.curation import FunnelStage, LostItem

_WORDS = {
    "merge": "merge commit", "first_commit": "first commit", "revert": "revert", "cherry_pick": "cherry-pick",
    "empty": "no change", "duplicate": "same or nearly the same change as another commit",
    "contaminated": "task of an excluded dataset", "too_many_files": "too many files",
    "too_large": "too many lines", "unreadable": "not readable", "no_code": "no code outside of tests",
    "native_code": "compiled code", "no_syntax": "invalid syntax for this Python",
    "no_real_change": "comments, docstrings or formatting only", "no_tests": "no changed tests",
    "not_tried": "not tried: enough tasks", "waiting": "not tried yet", "tree": "could not be unpacked",
    "python_version": "another Python version",
    "does_not_build": "no environment found", "sandbox": "sandbox failed", "machine": "this machine failed",
    "index": "the package index did not answer", "error": "unexpected error",
    "no_tests_run": "no test passes after the change", "timeout": "time limit",
    "runner_changed": "test runner changed", "collection": "new tests cannot be collected before the change",
    "no_difference": "tests already pass before the change", "unstable": "outcomes differ between runs",
    "statement": "no statement without a leak",
    "leaks": "the judge found the fix in the statement",
    "not_written": "the model wrote nothing usable", "written_do_not_run": "written tests do not run",
    "written_pass_before": "written tests already pass before the change",
    "written_fail_after": "written tests fail after the change", "fails_after": "tests fail after the change",
    "unclear": "the judge found behaviour that the statement does not specify", "not_wanted": "enough tasks",
    "strong": "tests reject every wrong patch", "other_runner": "tests of another runner",
    "no_solution": "no solution", "gold_fails": "solution fails", "no_wrong_patches": "no wrong patches",
    "nothing_recorded": "no call with literal arguments", "not_repeatable": "results vary or are no literals",
    "gold": "solution fails the new tests", "alternatives": "an honest alternative fails the new tests",
    "enough_tries": "not tried: enough tries of their functions", "no_report": "a test run gave no report",
    "unnoticed": "no test detects the fault",
    "odd_outcome": "a test is skipped or not reported with the fault",
    "earlier": "tried and dropped by an earlier version",
    "not_mended": "tests also fail with the fault reverted",
    "uncombined": "not combined yet", "not_combined": "not combined: enough tasks",
    "alone": "too few detected faults in other functions of the file",
    "combination": "no stable failure together with the others", "inert": "hidden by the others",
    "other_function": "the model changed more than the function's body",
    "unchanged": "the model changed nothing", "too_many_lines": "the model changed too many lines",
    "reveals": "comments or names reveal the fault",
    "not_caught": "no new test fails a wrong patch", "not_confirmed": "gradings contradict the new tests",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Example:
    """A commit or fault that became no task, or a task that stays as it is."""

    origin: str
    """Repository of a commit or source of a fault; empty for a task."""
    item: str
    """Start of a commit's hash, place of a fault, or a task's instance id."""
    detail: str

    @property
    def name(self) -> str:
        """Return the last part of the origin's folder or address."""
        return self.origin.rstrip("/").rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Loss:
    """Items lost for one reason."""

    reason: str
    words: str
    number: int
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the funnel."""

    name: str
    reached: int
    percent: float
    """Share of all items that reached it, percent."""
    written: int
    """Commits among them with tests by a model."""
    losses: tuple[Loss, ...]


@dataclass(frozen=True, slots=True)
class FunnelTable:
    """The funnel, with what a task took on average."""

    items: str
    """Name of the items: ``commits``, ``faults``, or ``tasks`` of a hardening."""
    stages: tuple[Stage, ...]
    tasks: int
    seconds: float | None
    """Time in trials per task, seconds; None without a task, or where it is not recorded."""
    disk_bytes: float | None
    """Images and environments per task, bytes; None as above."""
    skipped: tuple[tuple[str, str], ...]
    """Repositories or sources that could not be used, with the reasons."""
    hardened_from: str
    """Dataset whose tasks were hardened; empty where it is not known, and for other funnels."""


def build_funnel(record: Mapping[str, Any]) -> FunnelTable | None:
    """Return the funnel of a record, or None if it has none or is malformed.

    Args:
        record: a run's ``funnel`` (``engine.events.curation.CurationFunnel``), or a dataset's provenance.
    """
    stages, examples, skipped = record.get("funnel"), record.get("examples"), record.get("skipped", {})
    if not isinstance(stages, list) or not isinstance(examples, dict) or not isinstance(skipped, dict):
        return None
    try:
        read = [FunnelStage.model_validate(stage) for stage in stages]
        # Hardenings of earlier versions counted their tasks as the last stage only.
        items, tasks = read[0].stage, int(record.get("tasks", read[-1].reached))
        total = max(stage.reached for stage in read)
        return FunnelTable(
            items=items,
            stages=tuple(
                Stage(
                    stage.stage,
                    stage.reached,
                    100 * stage.reached / total if total else 0.0,
                    stage.written,
                    tuple(_loss(items, reason, number, examples) for reason, number in stage.lost.items()),
                )
                for stage in read
            ),
            tasks=tasks,
            seconds=_each(record.get("trial_seconds"), tasks),
            disk_bytes=_each(record.get("disk_bytes"), tasks),
            skipped=tuple((str(spec), str(reason)) for spec, reason in skipped.items()),
            hardened_from=str(record.get("hardened_from", "")),
        )
    except (IndexError, KeyError, TypeError, ValueError, AttributeError):
        return None


def _each(amount: object, number: int) -> float | None:
    return amount / number if isinstance(amount, int | float) and amount and number else None


def _loss(items: str, reason: str, number: int, examples: Mapping[str, Any]) -> Loss:
    shown = (LostItem.model_validate(example) for example in examples.get(reason, ()))
    return Loss(
        reason,
        _WORDS.get(reason, reason),
        number,
        tuple(
            Example(example.origin, example.item[: 12 if items == "commits" else None], example.detail)
            for example in shown
        ),
    )
