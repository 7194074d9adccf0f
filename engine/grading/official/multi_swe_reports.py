"""Reports in the format of multi_swe_bench 1.1: ``report.json`` of an instance and ``final_report.json``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from engine.grading.evidence import statuses_of
from engine.grading.rules.multi_swe import EXPECTED_BEFORE, FAIL, NONE, PASS, SKIP, STATES
from engine.types import Grade, GradeRule, TaskRow, Verdict

_COLUMNS = {"passed": PASS, "failed": FAIL, "skipped": SKIP}


def is_multi_swe(row: TaskRow) -> bool:
    """Return whether reports of a row can be written in this format."""
    return row.answer.grade_rule is GradeRule.MULTI_SWE


def published_id(row: TaskRow) -> str:
    """Return the instance's id in such reports: ``<org>/<repo>:pr-<number>``."""
    return f"{row.task.repo}:pr-{_number(row)}"


def _number(row: TaskRow) -> int:
    number = row.task.instance_id.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def instance_report(row: TaskRow, grade: Grade, log: str) -> dict[str, Any]:
    """Return the report of one instance: the three runs' tests and the transitions between them."""
    org, _, repo = row.task.repo.partition("/")
    run, test = (dict(row.answer.metadata.get(name) or {}) for name in ("run_result", "test_patch_result"))
    fix = {name: STATES[status] for name, status in statuses_of(row, log).items()}
    tests = {
        name: {"run": run.get(name, NONE), "test": test.get(name, NONE), "fix": fix.get(name, NONE)}
        for name in sorted({*run, *test, *fix})
    }
    passing = {name: states for name, states in tests.items() if states["fix"] == PASS}
    return {
        "org": org,
        "repo": repo,
        "number": _number(row),
        "valid": grade.verdict is Verdict.PASSED,
        "error_msg": "" if grade.verdict is Verdict.PASSED else grade.detail,
        "fixed_tests": {name: states for name, states in passing.items() if states["test"] != PASS},
        **{
            kind: {name: states for name, states in passing.items() if states["test"] == before}
            for kind, before in EXPECTED_BEFORE.items()
        },
        "run_result": _result(run),
        "test_patch_result": _result(test),
        "fix_patch_result": _result(fix),
    }


def _result(states: Mapping[str, str]) -> dict[str, Any]:
    lists = {
        column: sorted(name for name, state in states.items() if state == wanted)
        for column, wanted in _COLUMNS.items()
    }
    counts = {f"{column}_count": len(names) for column, names in lists.items()}
    return {**counts, **{f"{column}_tests": names for column, names in lists.items()}}


def final_report(rows: Mapping[str, TaskRow], ids: Mapping[str, Collection[str]]) -> dict[str, Any]:
    """Return ``final_report.json``: it counts submitted instances; those without a report are incomplete.

    Args:
        rows: the dataset, by instance id.
        ids: outcome of the official run report (``harness.OUTCOMES``) → instances.
    """
    lists = {
        name: sorted(published_id(rows[instance]) for instance in ids.get(source, ()) if instance in rows)
        for name, source in (
            ("submitted", "submitted"),
            ("completed", "completed"),
            ("incomplete", "error"),
            ("resolved", "resolved"),
            ("unresolved", "unresolved"),
            ("empty_patch", "empty_patch"),
            ("error", "error"),
        )
    }
    return {
        "total_instances": len(lists["submitted"]),
        **{f"{name}_instances": len(instances) for name, instances in lists.items()},
        **{f"{name}_ids": instances for name, instances in lists.items()},
    }
