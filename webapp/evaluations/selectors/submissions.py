"""Rollouts of an evaluation as instances of a submission to SWE-bench/experiments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain

from engine.errors import ConfigError, Problem
from engine.evaluation.submission import SubmittedInstance
from engine.events.harness import instance_report
from engine.types import TestKind, TestOutcome, Verdict
from engine.types import TestResult as Outcome
from engine.verifiers.selection.candidates import Candidate, by_task
from engine.verifiers.selection.rules import ORACLE, adapted, named_rules, pick
from webapp.rollouts.models.trajectories import TestLog, TestResult, Trajectory
from webapp.rollouts.selectors import learning
from webapp.rollouts.selectors.attempts import Point, StoredAttempt, stored_point, verifiers, with_most_scores

_BATCH = 10
"""Rollouts read at a time, with every step."""
_WITHOUT_REPORT = frozenset({"", Verdict.PATCH_FAILED, Verdict.TEST_TIMEOUT, Verdict.INFRA_ERROR})
"""Verdicts for which the harness writes no per-instance report."""


def submitted_instances(
    point: Point, *, index: int = 0, rule: str = "", verifier: int | None = None, tests: int | None = None
) -> Iterator[SubmittedInstance]:
    """Return one rollout of each task; lost tasks, and before the end unfinished ones, are left out.

    Rollouts are selected at the call and read lazily.

    Args:
        point: the evaluation.
        index: number of the attempt that is submitted, without a rule.
        rule: rule that selects one attempt of each task; empty submits the one with the number ``index``.
        verifier: run of the verifier whose P(YES) the rule uses; None for the one with most scores.
        tests: run of the verifier whose passed tests the rule uses; None for the one with most scores.

    Raises:
        ConfigError: there is no such attempt, rule or verifier, or the rule uses the tests that evaluations
            hide.
        MissingScoreError: a rollout lacks a score that the rule needs.
    """
    if rule:
        judge, by_tests = with_most_scores(verifiers(point))
        verifier, tests = verifier or judge, tests or by_tests
        stored = stored_point(point, verifier=verifier, tests=tests).attempts
    else:
        stored = stored_point(point).attempts
    graded = [rollout for rollout in stored if rollout.attempt.solved is not None]
    if not rule:
        chosen = [rollout for rollout in graded if rollout.attempt.index == index]
        if graded and not chosen:
            indices = sorted({rollout.attempt.index for rollout in graded})
            known = ", ".join(str(number) for number in indices)
            raise ConfigError(Problem(f"no task has attempt {index}; their attempts are {known}", "index"))
    else:
        selected = _selected([rollout.candidate for rollout in graded], rule)
        chosen = [rollout for rollout in graded if rollout.candidate.trajectory_id in selected]
    batches = (chosen[start : start + _BATCH] for start in range(0, len(chosen), _BATCH))
    return chain.from_iterable(map(_instances, batches))


def _selected(candidates: Sequence[Candidate], name: str) -> set[str]:
    if name == ORACLE.name:
        message = f"the rule '{name}' reads the evaluation's own result; submissions must not"
        raise ConfigError(Problem(message, "rule"))
    (rule,) = adapted(named_rules([name]), candidates)
    return {pick(rule, members).trajectory_id for members in by_task(candidates).values()}


def _instances(chosen: Sequence[StoredAttempt]) -> Iterator[SubmittedInstance]:
    pks = [int(rollout.candidate.trajectory_id) for rollout in chosen]
    rows = Trajectory.objects.only("verdict", "patch", "test_log").in_bulk(pks)
    logs = TestLog.objects.in_bulk(pks)
    tests: dict[int, list[Outcome]] = defaultdict(list)
    for test in TestResult.objects.filter(trajectory_id__in=pks).order_by("trajectory_id", "position"):
        kind, outcome = TestKind(test.kind), TestOutcome(test.outcome)
        tests[test.trajectory_id].append(Outcome(test_id=test.test_id, kind=kind, outcome=outcome))
    traces = {trace.id: trace for trace in learning.stored(pks, with_tokens=False)}
    for rollout, pk in zip(chosen, pks, strict=True):
        if pk not in traces:  # deleted in the meantime
            continue
        row, resolved = rows[pk], rollout.attempt.solved is True
        no_report = row.verdict in _WITHOUT_REPORT
        yield SubmittedInstance(
            instance_id=rollout.task.instance_id,
            repo=rollout.task.repo,
            patch=row.patch if row.patch.strip() else "",
            resolved=resolved,
            report=None if no_report else instance_report(tests[pk], resolved=resolved),
            test_output=logs[pk].text if pk in logs else row.test_log,
            trajectory=traces[pk].model_dump_json(exclude={"tokens", "metadata"}, indent=1),
        )
