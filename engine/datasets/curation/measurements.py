"""Measurements of curations, stored under ``home/curation/``: baselines of sources and trials of faults.

Resumed curations, and later ones with the same sources, reuse them.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import BaseModel, NonNegativeInt

from engine.config.sandbox import SandboxConfig
from engine.datasets.curation.baseline import Baseline
from engine.datasets.curation.candidates import Candidate
from engine.datasets.sources.fetch import Source
from engine.files import atomic_write

FOLDER = "curation"


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of testing a fault; without failing tests it does not become a task."""

    failing: tuple[str, ...] = ()
    exception: str = ""
    """Class of the exception raised in the first failing test."""
    problem: str = ""
    """Reason why the fault does not become a task: ``unnoticed``, ``odd_outcome``, ``unstable``,
    ``not_mended``, or ``earlier`` if an earlier version did not record it; those that may be this machine's,
    and are not kept: ``machine``, ``sandbox``, ``no_report``; empty if it becomes one."""
    detail: str = ""
    """Text behind a problem of this machine."""
    seconds: float = 0.0
    """Duration of the trial; 0 if an earlier version did not record it."""


class _KeptBaseline(BaseModel):
    seconds: dict[str, float]
    executed_by: dict[str, dict[int, tuple[NonNegativeInt, ...]]]
    """File → line → positions in ``seconds`` of the tests that execute it."""


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
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._image = image
        self._baseline = folder / "baseline.json"
        self._trials = folder / "trials.jsonl"
        self._known = self._load_trials()

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
        return self._known.get(_key(candidate))

    def keep_trial(self, candidate: Candidate, trial: Trial) -> None:
        """Store the trial of a candidate."""
        key = _key(candidate)
        self._known[key] = trial
        line = json.dumps({"key": key, **asdict(trial)}) + "\n"
        file = os.open(self._trials, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def _load_trials(self) -> dict[str, Trial]:
        known: dict[str, Trial] = {}
        lines = self._trials.read_text().splitlines() if self._trials.exists() else []
        for line in lines:
            try:
                kept = json.loads(line)
                failing = tuple(kept["failing"])
                problem = kept.get("problem", "" if failing else "earlier")
                seconds = float(kept.get("seconds", 0.0))
                known[kept["key"]] = Trial(failing, kept["exception"], problem, seconds=seconds)
            except (ValueError, KeyError, TypeError):
                continue  # cut off when the process was killed
        return known


def _key(candidate: Candidate) -> str:
    content = repr((candidate.path, candidate.mutated, candidate.tests))
    return hashlib.sha256(content.encode()).hexdigest()[:32]
