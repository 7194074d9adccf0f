"""Outcomes of the bench of test-time scaling: finished runs ─▶ candidates ─▶ Best@K with intervals.

Tasks and seeds are both sampling units: an interval is a percentile bootstrap that draws seeds and tasks,
each with replacement. Over few seeds such intervals are somewhat too narrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.runs import events_of
from engine.evaluation.attempts import Attempt, is_solved
from engine.evaluation.breakdown import budget_curve
from engine.orchestrator.verification.stored_trajectories import StoredTrajectories
from engine.orchestrator.verification.verify import scores_of
from engine.patches.sections import submission_hash
from engine.types import TerminationReason, Verdict
from engine.verifiers.calibration import Calibration, Forecast, calibrate
from engine.verifiers.selection.candidates import Candidate, by_task
from engine.verifiers.selection.curves import Short, curves
from engine.verifiers.selection.rules import RULES

RANDOM = "random"
"""Random selection, whose Best@K is pass@1 for every K."""
SELECTORS = (*RULES, RANDOM)
_RESAMPLES = 2000

Interval = tuple[float, float, float]
"""Mean, low, high."""
Rates = NDArray[np.float64]
"""Best@K by seed, task and K; NaN where infrastructure lost all rollouts of a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOutcome:
    """Held-out rollouts of one seed with their scores."""

    seed: int
    candidates: list[Candidate]
    attempts: list[Attempt]

    @property
    def calibration(self) -> Calibration:
        """Return the calibration of the judge's scores against the verdicts."""
        return calibrate(
            {
                task: [
                    Forecast(member.p_yes, bool(member.resolved))
                    for member in members
                    if member.p_yes is not None
                ]
                for task, members in by_task(self.candidates).items()
            }
        )


def read_outcome(home: Path, *, seed: int, rollouts: str, judged: str, tested: str) -> SeedOutcome:
    """Join a run's rollouts with the scores of two verifiers' runs, by trajectory.

    Args:
        home: the data folder.
        seed: seed of the rollouts.
        rollouts: run of the rollouts.
        judged: run of the execution-free verifier.
        tested: run of the execution-based verifier.
    """
    p_yes = {key: record.p_yes for key, record in scores_of(home / "runs" / judged)}
    tests = dict(scores_of(home / "runs" / tested))
    source = StoredTrajectories(home / "runs" / rollouts, home=home)
    candidates = [
        Candidate(
            task_id=stored.id.key.task_id,
            trajectory_id=str(stored.id),
            resolved=stored.resolved,
            p_yes=p_yes[stored.id],
            regression_passes=tests[stored.id].regression_passes,
            reproduction_passes=tests[stored.id].reproduction_passes,
            steps=len(stored.transcript.turns),
            patch_hash=submission_hash(stored.transcript.patch),
        )
        for stored in source.read(source.ids)
    ]
    return SeedOutcome(seed=seed, candidates=candidates, attempts=_attempts(home / "runs" / rollouts))


def _attempts(run_dir: Path) -> list[Attempt]:
    attempts: dict[tuple[str, int], Attempt] = {}
    for event in events_of(run_dir, "trajectory_finished"):
        task, index = event["ref"]["task_id"], event["ref"]["index"]
        verdict = Verdict(event["verdict"]) if event["verdict"] else None
        attempts[task, index] = Attempt(
            task_id=task,
            index=index,
            solved=is_solved(TerminationReason(event["termination"]), event["reward"], verdict),
            termination=TerminationReason(event["termination"]),
            steps=event["num_steps"],
            generated_tokens=event["generated_tokens"],
        )
    return list(attempts.values())


def best_at_k(outcomes: Sequence[SeedOutcome], ks: Sequence[int]) -> dict[str, Rates]:
    """Return Best@K by selector; a task with fewer rollouts than K uses all of them.

    Raises:
        MissingScoreError: a rollout lacks a score.
    """
    tasks = sorted({candidate.task_id for outcome in outcomes for candidate in outcome.candidates})
    rates = {name: np.full((len(outcomes), len(tasks), len(ks)), np.nan) for name in SELECTORS}
    for seed, outcome in enumerate(outcomes):
        groups = by_task(outcome.candidates)
        for number, task in enumerate(tasks):
            if task not in groups:
                continue
            for curve in curves(groups[task], tuple(RULES.values()), ks, short=Short.ALL):
                rates[curve.rule][seed, number] = [point.rate for point in curve.points]
            rates[RANDOM][seed, number] = np.mean([candidate.resolved for candidate in groups[task]])
    return rates


def within_budget(outcomes: Sequence[SeedOutcome], budgets: Sequence[int]) -> Rates:
    """Return the share of rollouts that solved the task within a budget of generated tokens."""
    tasks = sorted({candidate.task_id for outcome in outcomes for candidate in outcome.candidates})
    rates = np.full((len(outcomes), len(tasks), len(budgets)), np.nan)
    for seed, outcome in enumerate(outcomes):
        for number, task in enumerate(tasks):
            of_task = [attempt for attempt in outcome.attempts if attempt.task_id == task]
            points = budget_curve(of_task, attrgetter("generated_tokens"), budgets)
            rates[seed, number] = [np.nan if point.rate is None else point.rate for point in points]
    return rates


def intervals(rates: Rates, *, seed: int = 0) -> list[Interval]:
    """Return mean and 95 % interval for each column of rates by seed, task and column."""
    rng = np.random.default_rng(seed)
    num_seeds, num_tasks, _ = rates.shape
    seeds = rng.integers(num_seeds, size=(_RESAMPLES, num_seeds, 1))
    tasks = rng.integers(num_tasks, size=(_RESAMPLES, 1, num_tasks))
    known = np.isfinite(rates)
    sums = np.where(known, rates, 0.0)[seeds, tasks].sum(axis=(1, 2))
    with np.errstate(invalid="ignore"):  # a resample of missing values only has no mean
        means = sums / known[seeds, tasks].sum(axis=(1, 2))
    low, high = np.nanquantile(means, (0.025, 0.975), axis=0)
    centre = np.nanmean(rates, axis=(0, 1))
    return [(float(c), float(a), float(b)) for c, a, b in zip(centre, low, high, strict=True)]


def difference(rates: Mapping[str, Rates], first: str, second: str) -> list[Interval]:
    """Return the paired difference of two selectors with its interval, for each K."""
    return intervals(rates[first] - rates[second])


def run_summary(run_dir: Path) -> dict[str, Any]:
    """Return the summary of a finished run."""
    return dict([*events_of(run_dir, "run_finished")][-1]["summary"])
