"""Rule: the test script exits with 0, and pytest's sealed record, if pytest ran, agrees."""

from __future__ import annotations

from engine.config.rollout import GradingConfig
from engine.grading.evidence import Evidence, Judgement, overlooked, recorded_tests, unconfirmed_success
from engine.types import TaskRow


def judge(row: TaskRow, evidence: Evidence, config: GradingConfig) -> Judgement:  # noqa: ARG001
    """Apply the rule described in the module's docstring."""
    tests = recorded_tests(evidence)
    if evidence.exit_code != 0:
        return Judgement(
            passed=False, tests=tests, detail=f"the tests ended with exit code {evidence.exit_code}"
        )
    return Judgement(
        passed=True, tests=tests, signs=unconfirmed_success(evidence), overlooked=overlooked(evidence)
    )
