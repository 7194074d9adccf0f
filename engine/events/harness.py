"""File formats of the official SWE-bench harness: predictions, run reports of ``schema_version`` 2."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.types import TestKind, TestOutcome, TestResult

OUTCOMES = (
    "submitted", "completed", "incomplete", "resolved", "unresolved", "infra_failure", "ambiguous_failure",
    "empty_patch", "error",
)  # fmt: skip
"""Outcomes under which a run report lists instances."""

_SUCCESS = frozenset({TestOutcome.PASSED, TestOutcome.XFAIL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A proposed patch for an instance."""

    instance_id: str
    model_name_or_path: str
    model_patch: str | None

    def line(self) -> str:
        """Return one line of ``predictions.jsonl``, newline included."""
        fields = {
            "instance_id": self.instance_id,
            "model_name_or_path": self.model_name_or_path,
            "model_patch": self.model_patch,
        }
        return f"{json.dumps(fields)}\n"


def instance_report(tests: Iterable[TestResult], *, resolved: bool) -> dict[str, Any]:
    """Return the harness's per-instance report of a patch that was applied, from the tests' outcomes."""
    tests = list(tests)

    def outcomes(kind: TestKind) -> dict[str, list[str]]:
        of_kind = [test for test in tests if test.kind is kind]
        return {
            "success": [test.test_id for test in of_kind if test.outcome in _SUCCESS],
            "failure": [test.test_id for test in of_kind if test.outcome not in _SUCCESS],
        }

    return {
        "patch_is_None": False,
        "patch_exists": True,
        "patch_successfully_applied": True,
        "resolved": resolved,
        "infra_failure": False,
        "tests_status": {
            "FAIL_TO_PASS": outcomes(TestKind.FAIL_TO_PASS),
            "PASS_TO_PASS": outcomes(TestKind.PASS_TO_PASS),
            "FAIL_TO_FAIL": {"success": [], "failure": []},
            "PASS_TO_FAIL": {"success": [], "failure": []},
        },
    }


def run_report(
    *, total: int, ids: Mapping[str, Collection[str]], reasons: Mapping[str, str]
) -> dict[str, Any]:
    """Return the harness's run report.

    Args:
        total: instances of the dataset.
        ids: outcome (see ``OUTCOMES``) → instances.
        reasons: instance → reason, for infrastructure failures and ambiguous failures.
    """
    listed = {name: sorted(ids.get(name, ())) for name in OUTCOMES}
    counts = {f"{name}_instances": len(listed[name]) for name in OUTCOMES if name != "incomplete"}
    return {
        "total_instances": total,
        **counts,
        **{f"{name}_ids": listed[name] for name in OUTCOMES},
        "failure_reasons": dict(sorted(reasons.items())),
        "schema_version": 2,
    }
