"""Assessment of rows from repeated gradings, and selection of a split's rows for a run.

``engine.events.health`` defines the file format and quarantine. All functions are pure, except that some read
the dataset's folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.config.rollout import DatasetConfig
from engine.errors import DatasetError
from engine.events.health import (
    SOLVE_RATES_FILE,
    RowHealth,
    RowStatus,
    Side,
    SideOutcome,
    content_hash,
    read,
    row_health,
)
from engine.types import Grade, TaskRow, TestOutcome, Verdict

_NAMED_IN_REASON = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFinding:
    """Assessment of one row from its gradings."""

    status: RowStatus
    noop: Side
    gold: Side
    flaky_tests: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The selected rows of a split, with counts of the excluded ones by reason."""

    rows: tuple[TaskRow, ...]
    num_tasks: int
    num_quarantined: int = 0
    num_outside: int = 0
    num_weak: int = 0
    num_unmeasured: int = 0


def row_content(row: TaskRow) -> str:
    """Return the ``content_hash`` of a row as it would be stored."""
    task, answer = ({name: getattr(half, name) for name in half.__slots__} for half in (row.task, row.answer))
    return content_hash(task, answer)


def read_row_health(folder: Path, rows: Sequence[TaskRow]) -> dict[str, RowHealth]:
    """Return the current health of every row of a dataset folder, by task id. Raises DatasetError."""
    records = read(folder)
    if not records:
        return {}
    recorded = {record.task_id for record in records}
    return row_health(records, {row.task.id: row_content(row) for row in rows if row.task.id in recorded})


def judge(noop: Sequence[Grade], gold: Sequence[Grade]) -> HealthFinding:
    """Assess a row from repeated gradings without changes and with its gold patch.

    A test is flaky when it passed in one grading and not in another of the same patch. Gradings lost to
    infrastructure are ignored. A fault seen in one grading counts, even if other gradings were lost.
    """
    noop_side = _side(noop, wanted=SideOutcome.FAILED)
    gold_side = _side(gold, wanted=SideOutcome.PASSED)
    flaky = tuple(sorted(_flaky_tests(noop) | _flaky_tests(gold)))
    status, reason = _status(noop_side, gold_side, flaky)
    return HealthFinding(status=status, noop=noop_side, gold=gold_side, flaky_tests=flaky, reason=reason)


def _side(grades: Sequence[Grade], *, wanted: SideOutcome) -> Side:
    passed = [grade.verdict is Verdict.PASSED for grade in _known(grades)]
    if not passed:
        outcome = SideOutcome.INFRA
    elif len(set(passed)) > 1:
        outcome = SideOutcome.FLAKY
    else:
        outcome = SideOutcome.PASSED if passed[0] else SideOutcome.FAILED
    passes = wanted is SideOutcome.PASSED
    unwanted = [grade for grade in _known(grades) if (grade.verdict is Verdict.PASSED) != passes] or grades
    return Side(
        outcome=outcome,
        verdicts=[grade.verdict for grade in grades],
        seconds=[round(grade.seconds, 3) for grade in grades],
        detail=next((grade.detail[:500] for grade in unwanted), "") if outcome is not wanted else "",
    )


def _known(grades: Sequence[Grade]) -> list[Grade]:
    return [grade for grade in grades if grade.verdict is not Verdict.INFRA_ERROR]


def _flaky_tests(grades: Sequence[Grade]) -> set[str]:
    """Return the tests that passed in one grading and failed in another; both must have outcomes."""
    runs = [
        {test.test_id for test in grade.tests if test.outcome is TestOutcome.PASSED}
        for grade in _known(grades)
        if any(test.outcome is not TestOutcome.MISSING for test in grade.tests)
    ]
    seen: set[str] = set().union(*runs)
    return {test for test in seen if not all(test in run for run in runs)}


def _status(noop: Side, gold: Side, flaky: Sequence[str]) -> tuple[RowStatus, str]:
    if flaky or SideOutcome.FLAKY in (noop.outcome, gold.outcome):
        return RowStatus.FLAKY, _flaky_reason(noop, gold, flaky)
    if gold.outcome is SideOutcome.FAILED:
        reason = f"the gold patch does not pass: {gold.detail or gold.verdicts[0]}"
        if noop.outcome is SideOutcome.PASSED:
            reason = f"it passes untouched, but not with the gold patch: {gold.detail or gold.verdicts[0]}"
        return RowStatus.GOLD_FAILS, reason
    if noop.outcome is SideOutcome.PASSED:
        return RowStatus.NOOP_PASSES, "it passes untouched: the tests do not notice the problem"
    if SideOutcome.INFRA in (noop.outcome, gold.outcome):
        lost = noop if noop.outcome is SideOutcome.INFRA else gold
        return RowStatus.INFRA, lost.detail
    return RowStatus.VALID, ""


def _flaky_reason(noop: Side, gold: Side, flaky: Sequence[str]) -> str:
    parts = [
        f"{state} it passed {side.verdicts.count(Verdict.PASSED)} of {len(side.verdicts)} times"
        for state, side in (("untouched", noop), ("with the gold patch", gold))
        if side.outcome is SideOutcome.FLAKY
    ]
    if flaky:
        more = f" and {len(flaky) - _NAMED_IN_REASON} more" if len(flaky) > _NAMED_IN_REASON else ""
        parts.append(f"flaky tests: {', '.join(flaky[:_NAMED_IN_REASON])}{more}")
    return "; ".join(parts)


def select(rows: Sequence[TaskRow], config: DatasetConfig, folder: Path) -> Selection:
    """Return the rows that a run should use, in their order; ``config.limit`` is not applied.

    Args:
        rows: the rows of one split.
        config: settings for quarantine and solve rates.
        folder: the dataset's folder, with its records.

    Raises:
        DatasetError: the records cannot be read, required solve rates were never measured, or no row
            remains.
    """
    kept = list(rows)
    if config.quarantined == "leave_out" or config.min_strength is not None:
        health = read_row_health(folder, kept)
        if config.quarantined == "leave_out":
            kept = [row for row in kept if not health.get(row.task.id, RowHealth()).quarantined]
    num_quarantined = len(rows) - len(kept)
    if config.min_strength is not None:
        strengths = {row.task.id: health.get(row.task.id, RowHealth()).strength for row in rows}
        if all(strength is None for strength in strengths.values()):
            raise DatasetError(
                f"the test strength of '{config.name}' was never measured: run `trainyard dataset validate "
                f"{config.name} --wrong-patches 24`, or leave dataset.min_strength unset"
            )
        kept = [row for row in kept if _is_strong(strengths[row.task.id], config.min_strength)]
    num_weak = len(rows) - num_quarantined - len(kept)
    unmeasured = outside = 0
    if config.uses_solve_rates:
        measured = read_solve_rates(folder)
        rates = {row.task.id: _rate(measured.get(row.task.id), config.solve_rate_samples) for row in kept}
        unmeasured = sum(rate is None for rate in rates.values())
        inside = [row for row in kept if _is_wanted(rates[row.task.id], config)]
        outside = len(kept) - len(inside)
        kept = inside
    if not kept:
        raise DatasetError(
            f"no task of '{config.name}' is left: of {len(rows)}, {num_quarantined} are in quarantine, "
            f"{num_weak} have too weak tests and {outside} are outside the wanted solve rates; "
            "see the dataset's health page"
        )
    return Selection(
        rows=tuple(kept),
        num_tasks=len(rows),
        num_quarantined=num_quarantined,
        num_outside=outside,
        num_weak=num_weak,
        num_unmeasured=unmeasured,
    )


def _is_strong(strength: float | None, wanted: float) -> bool:
    return strength is None or strength >= wanted


def _rate(measured: tuple[int, int] | None, samples: int) -> float | None:
    solved, graded = measured or (0, 0)
    return solved / graded if graded >= samples else None


def _is_wanted(rate: float | None, config: DatasetConfig) -> bool:
    if rate is None:
        return True
    low, high = config.solve_rate_min, config.solve_rate_max
    return (low is None or rate >= low) and (high is None or rate <= high)


def read_solve_rates(folder: Path) -> Mapping[str, tuple[int, int]]:
    """Return task id → (solved, graded) as last measured.

    Raises:
        DatasetError: never measured, or the file is broken.
    """
    path = folder / SOLVE_RATES_FILE
    try:
        data = json.loads(path.read_text())
        return {str(key): (int(solved), int(graded)) for key, (solved, graded) in data["tasks"].items()}
    except FileNotFoundError:
        raise DatasetError(
            f"the solve rates of '{folder.name}' were never measured: run `trainyard dataset difficulty "
            f"{folder.name}`, or leave dataset.solve_rate_min and _max unset"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatasetError(
            f"{path} is broken ({error}): run `trainyard dataset difficulty {folder.name}`"
        ) from None
