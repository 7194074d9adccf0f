"""Runs that people pinned as baselines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from webapp.runs.models.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Baselines:
    """The pinned runs, by number."""

    of_all: int | None
    by_experiment: Mapping[int, int]

    def of(self, run: Run) -> int | None:
        """Return the baseline of a run, that of its experiment first; None for a baseline itself."""
        pinned = self.by_experiment.get(run.experiment_id) if run.experiment_id is not None else None
        number = self.of_all if pinned is None else pinned
        return None if number == run.pk else number

    def __bool__(self) -> bool:
        return self.of_all is not None or bool(self.by_experiment)


def pinned_baselines() -> Baselines:
    """Return all pinned runs, with one query."""
    rows = Run.objects.exclude(baseline_of="").order_by().values_list("pk", "baseline_of", "experiment_id")
    return Baselines(
        of_all=next((pk for pk, scope, _ in rows if scope == Run.Baseline.ALL), None),
        by_experiment={
            experiment: pk
            for pk, scope, experiment in rows
            if scope == Run.Baseline.EXPERIMENT and experiment is not None
        },
    )
