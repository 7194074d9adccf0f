"""Results of a run by kind, and the sentence about results kept after an early end."""

from __future__ import annotations

from collections.abc import Sequence

from engine.types import RunKind, RunState
from webapp.datasets.models.datasets import Dataset
from webapp.runs.contexts.results import datasets, learning, rollouts
from webapp.runs.contexts.results.parts import RunResults
from webapp.runs.kinds import kind_of
from webapp.runs.models.iterations import Checkpoint
from webapp.runs.models.runs import Run
from webapp.runs.selectors.checkpoints import newest_checkpoint
from webapp.runs.selectors.iterations import Point


def build_results(run: Run, points: Sequence[Point], *, made: Dataset | None) -> RunResults | None:
    """Return the results of a run; None for kinds whose evaluations, charts and rollouts are all there is.

    Args:
        run: the run.
        points: its newest finished iterations.
        made: the dataset that it made.
    """
    if run.is_imported:
        return rollouts.imported(run)
    if run.checks_rows:
        return rollouts.row_check(run)
    match run.kind:
        case RunKind.CURATE if run.config.get("source") == "hardening":
            return datasets.hardening(run, made)
        case RunKind.CURATE:
            return datasets.curation(run, made)
        case RunKind.IMPORT:
            return datasets.importation(run, made)
        case RunKind.VALIDATE:
            return datasets.validation(run)
        case RunKind.SFT:
            return learning.fine_tuning(run, points)
        case RunKind.VERIFIER:
            return rollouts.verification(run)
        case RunKind.REGRADE:
            return rollouts.regrading(run)
        case _:
            return None


def kept_of(run: Run) -> str:
    """Return the sentence about results kept of a failed or stopped run; empty for others."""
    if run.state not in (RunState.FAILED, RunState.STOPPED) or run.running_at is None:
        return ""
    return kind_of(run.kind).kept or _checkpointed(newest_checkpoint(run))


def _checkpointed(checkpoint: Checkpoint | None) -> str:
    if checkpoint is None:
        return "No checkpoint was saved."
    return f"The checkpoint after iteration {checkpoint.iteration} is kept."
