"""File formats of the official SWE-bench harness: predictions, run reports of ``schema_version`` 2."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

OUTCOMES = (
    "submitted", "completed", "incomplete", "resolved", "unresolved", "infra_failure", "ambiguous_failure",
    "empty_patch", "error",
)  # fmt: skip
"""Outcomes under which a run report lists instances."""


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
