"""Runs of pytest in subprocesses, with the outcome of every test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one run of pytest."""

    code: int
    """Exit status."""
    counts: Counter[str]
    """Number of tests by outcome."""
    failed: tuple[str, ...]
    """Names of the tests that failed."""
    wall_s: float


def run_recorded(arguments: Sequence[str], times: Path) -> Outcome:
    """Run pytest with the given arguments; ``times`` is the file for the seconds of its tests."""
    times.unlink(missing_ok=True)
    code = subprocess.run([sys.executable, "-m", "pytest", *arguments, "--times", str(times)]).returncode
    if not times.exists():  # an option that pytest refused
        return Outcome(code, Counter(), (), 0.0)
    recorded = json.loads(times.read_text())
    outcomes = {name: test["outcome"] for name, test in recorded["tests"].items()}
    failed = tuple(sorted(name for name, outcome in outcomes.items() if outcome == "failed"))
    return Outcome(code, Counter(outcomes.values()), failed, recorded["session"]["wall"])


def summary(title: str, outcome: Outcome) -> str:
    """Return a line about the run and a line for each failed test."""
    state = "ok" if outcome.code == 0 else f"FAILED (exit status {outcome.code})"
    counts = ", ".join(f"{count} {name}" for name, count in sorted(outcome.counts.items()))
    lines = [f"{title}: {state}: {counts or 'no tests'} in {outcome.wall_s:.0f} s"]
    return "\n".join([*lines, *(f"  {name}" for name in outcome.failed)])
