"""Endings of attempts, counted beside the solve rate."""

from __future__ import annotations

from engine.evaluation.attempts import Attempt
from engine.evaluation.breakdown import parts
from engine.evaluation.endings import Endings
from engine.types import TerminationReason

TIME, STEPS = TerminationReason.ROLLOUT_TIMEOUT, TerminationReason.MAX_STEPS


def test_attempts_are_counted_by_ending_and_lost_attempts_separately() -> None:
    table = [
        Attempt(task_id="a", solved=True),
        Attempt(task_id="a", solved=False, termination=STEPS),
        *(Attempt(task_id="b", index=n, solved=False, termination=TIME) for n in range(2)),
        Attempt(task_id="b", solved=True, termination=TIME),
        Attempt(task_id="b", solved=None, termination=TerminationReason.ENV_ERROR),
    ]
    counts = Endings.of_attempts(table)
    assert (counts.submitted, list(counts.limits.items()), counts.excluded) == (1, [(TIME, 3), (STEPS, 1)], 1)
    assert (counts.graded, counts.limited, counts.timed) == (5, 4, 3)
    whole = parts(table, {"a": "x", "b": "x"})
    assert [part.num_cut_short for part in whole] == [2], "what was solved in time says enough"


def test_endings_are_read_from_the_metrics_of_an_evaluation() -> None:
    shares = {
        "termination/submitted": 0.04,
        "termination/rollout_timeout": 0.9,
        "termination/env_error": 0.06,
    }
    counts = Endings.of_metrics({**shares, "infra/rate": 0.06}, graded=94)
    assert counts is not None
    assert (counts.submitted, dict(counts.limits), counts.excluded) == (4, {TIME: 90}, 6)
    assert Endings.of_metrics(shares, graded=94) == counts, "other trainers may not report the rate"
    assert Endings.of_metrics({}, graded=94) is None
    assert Endings.of_metrics(shares, graded=0) is None
