"""Measurements of curations, stored under ``home/curation/``: baselines of sources and trials of faults.

Resumed curations, and later ones with the same sources, reuse them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, FiniteFloat, NonNegativeInt

from engine.config.sandbox import SandboxConfig
from engine.datasets.curation.baseline import Baseline
from engine.datasets.curation.candidates import Candidate
from engine.datasets.kept_results import KeptResults
from engine.datasets.sources.fetch import Source
from engine.files import atomic_write

FOLDER = "curation"
NOT_KEPT = frozenset({"machine", "sandbox", "no_report"})
"""Problems of trials that may be this machine's: the next curation tries again."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of testing a fault; without failing tests it does not become a task."""

    failing: tuple[str, ...] = ()
    exception: str = ""
    """Class of the exception raised in the first failing test."""
    problem: str = ""
    """Reason why the fault does not become a task: ``unnoticed``, ``odd_outcome``, ``unstable``,
    ``not_mended``, or ``earlier`` if an earlier version did not record it; or of ``NOT_KEPT``; empty if it
    becomes one."""
    detail: str = ""
    """Text behind a problem of this machine."""
    seconds: float = 0.0
    """Duration of the trial; 0 if an earlier version did not record it."""


class _KeptBaseline(BaseModel):
    seconds: dict[str, float]
    executed_by: dict[str, dict[int, tuple[NonNegativeInt, ...]]]
    """File → line → positions in ``seconds`` of the tests that execute it."""


class _KeptTrial(BaseModel):
    failing: tuple[str, ...]
    exception: str
    problem: str | None = None
    """None if an earlier version did not record it."""
    seconds: FiniteFloat = 0.0


class Measurements:
    """Stored measurements of one intact image; damaged or missing ones are measured again.

    Args:
        home: the data folder.
        image: name of the intact image, which includes a hash of its content.
        stability_runs: number of test runs that must agree.
        sandbox: settings with the limits of the test runs.
    """

    def __init__(self, home: Path, image: str, *, stability_runs: int, sandbox: SandboxConfig) -> None:
        limits = "-".join(map(str, sandbox.limits().values()))
        folder = home / FOLDER / f"{image}-{stability_runs}-{limits}"
        self._image = image
        self._baseline = folder / "baseline.json"
        self._trials = KeptResults(folder / "trials.jsonl", _KeptTrial)

    def baseline(self, source: Source, toolchain: Path) -> Baseline | None:
        """Return the stored baseline of the source; None if there is none."""
        try:
            kept = _KeptBaseline.model_validate_json(self._baseline.read_bytes())
            tests = tuple(kept.seconds)
            return Baseline(
                source=source,
                image=self._image,
                toolchain=toolchain,
                seconds=kept.seconds,
                executed_by={
                    path: {line: tuple(tests[n] for n in numbers) for line, numbers in lines.items()}
                    for path, lines in kept.executed_by.items()
                },
            )
        except (OSError, ValueError, IndexError):
            return None

    def keep_baseline(self, baseline: Baseline) -> None:
        """Store a measured baseline."""
        numbers = {test: number for number, test in enumerate(baseline.seconds)}
        executed_by = {
            path: {line: [numbers[test] for test in tests] for line, tests in lines.items()}
            for path, lines in baseline.executed_by.items()
        }
        content = {"seconds": dict(baseline.seconds), "executed_by": executed_by}
        atomic_write(self._baseline, json.dumps(content))

    def trial(self, candidate: Candidate) -> Trial | None:
        """Return the stored trial of a candidate; None if it has not been tried."""
        kept = self._trials.get(_key(candidate))
        if kept is None:
            return None
        problem = ("" if kept.failing else "earlier") if kept.problem is None else kept.problem
        return Trial(kept.failing, kept.exception, problem, seconds=kept.seconds)

    def keep_trial(self, candidate: Candidate, trial: Trial) -> None:
        """Store the trial of a candidate, without its detail."""
        kept = _KeptTrial(
            failing=trial.failing, exception=trial.exception, problem=trial.problem, seconds=trial.seconds
        )
        self._trials.keep(_key(candidate), kept)


def _key(candidate: Candidate) -> str:
    content = repr((candidate.path, candidate.mutated, candidate.tests))
    return hashlib.sha256(content.encode()).hexdigest()[:32]
