"""Rule: a number written by the verifier script, as in Harbor: ``reward.txt``, or ``reward.json`` with names.

Of several numbers ``reward`` counts if present, else their mean, clipped to 0 … 1; the patch passes at 1. If
the script ran pytest, a reward requires a passed test. A full reward allows only failed tests that fail under
the gold patch as well. The reward of a verifier that a signal stopped does not count. A full reward with a
non-zero exit code is a sign of tampering: writing a lower one may have failed. It counts only if runs of the
solution can show whether the verifier always ends like this.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from engine.config.rollout import GradingConfig
from engine.grading.evidence import (
    Evidence,
    Judgement,
    has_passed_tests,
    overlooked,
    recorded_tests,
    unconfirmed_success,
)
from engine.grading.solution import has_solution
from engine.types import TaskAnswer, TaskRow

VERIFIER_FAILED = "the verifier gave a full reward, but ended with an error"
"""Sign of tampering that counts only if runs of the solution are known not to show it."""
_REWARD_FILES = ("/logs/verifier/reward.json", "/logs/verifier/reward.txt")
_ENDED_FROM_OUTSIDE = frozenset({129, 130, 131, 137, 143})
"""Exit codes of a shell terminated by SIGHUP, SIGINT, SIGQUIT, SIGKILL or SIGTERM."""


def judge(row: TaskRow, evidence: Evidence, config: GradingConfig) -> Judgement:  # noqa: ARG001
    """Apply the rule described in the module's docstring."""
    tests = recorded_tests(evidence)
    if not evidence.rewards:
        return Judgement(passed=False, tests=tests, detail="the verifier wrote no reward")
    value = reward_of(evidence.rewards)
    if not math.isfinite(value):
        return Judgement(passed=False, tests=tests, detail=f"the verifier's reward is {value}")
    reward = min(max(value, 0.0), 1.0)
    partial = reward < 1 and evidence.record is not None and bool(evidence.record.outcomes)
    if reward > 0 and evidence.exit_code in _ENDED_FROM_OUTSIDE:
        detail = f"the verifier was stopped by a signal (exit code {evidence.exit_code})"
        return Judgement(passed=False, tests=tests, detail=detail)
    if partial and reward > 0 and not has_passed_tests(evidence):
        detail = f"the verifier's reward is {value:g}, but no test passed"
        return Judgement(passed=False, tests=tests, detail=detail)
    detail = "" if reward >= 1 else f"the verifier's reward is {value:g}"
    signs = unconfirmed_success(evidence) if reward > 0 and not partial else ()
    if reward >= 1 and evidence.exit_code != 0 and has_solution(row) and not row.answer.own_box:
        signs = (*signs, VERIFIER_FAILED)
    return Judgement(
        passed=reward >= 1,
        tests=tests,
        detail=detail,
        reward=reward,
        signs=signs,
        overlooked=overlooked(evidence) if reward >= 1 else (),
    )


def reward_files(answer: TaskAnswer) -> list[str]:
    """Return the absolute paths to which the verifier may write its reward."""
    return [str(path) for path in answer.metadata.get("reward_files") or _REWARD_FILES]


def reward_of(rewards: Mapping[str, float]) -> float:
    """Return the reward of a file with at least one number; infinite if it is a mean that is not finite."""
    if "reward" in rewards:
        return rewards["reward"]
    try:
        return fmean(rewards.values())
    except (OverflowError, ValueError):  # numbers too large, and infinities of both signs
        return math.inf


def parse_rewards(name: str, text: str) -> Mapping[str, float]:
    """Parse a reward file into rewards by name. Raises ValueError or TypeError when it holds none."""
    if not name.endswith(".json"):
        return {"reward": float(text.strip())}
    try:
        return _numbers(json.loads(text))
    except (RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from None


def _numbers(found: Any) -> Mapping[str, float]:
    if isinstance(found, int | float) and not isinstance(found, bool):
        return {"reward": float(found)}
    if not isinstance(found, dict) or not found:
        raise ValueError("neither a number nor an object of numbers")
    return {str(key): float(value) for key, value in found.items() if not isinstance(value, bool)}
