"""Testing agent: any policy writes reproduction tests with the usual tools, judged by the keep rule.

    task without its answer ── rollout ── test_issue.py ── keep rule ── reward 1 or 0

Its rollouts are trajectories like any others: they can be stored, shown, and trained on.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.config.rollout import AgentConfig, RolloutConfig
from engine.config.sandbox import SandboxConfig
from engine.errors import PatchError
from engine.inference.base import Policy, SamplingParams
from engine.patches.apply import apply_patch
from engine.patches.sections import split_patch
from engine.rollout import GroupRequest, RolloutScheduler, SweEnvironments
from engine.rollout.observer import RolloutObserver
from engine.sandbox.pool.pool import SandboxPool
from engine.types import Grade, Group, TaskRow, TestKind, TestOutcome, TestResult, Trajectory, Verdict
from engine.verifiers.execution_based.commands import visible_row
from engine.verifiers.execution_based.reproduction import (
    TEST_FILE,
    Examination,
    Rejection,
    ReproductionTest,
    examine,
)
from engine.verifiers.execution_based.runs import TestRuns

PROMPT = "reproduction_v1"
_VERDICTS = {Rejection.TIMED_OUT: Verdict.TEST_TIMEOUT, Rejection.TAMPERED: Verdict.TAMPERED}


class KeepRuleGrader:
    """Grader of testing agents by the keep rule (``engine.rollout.environments.RolloutGrader``).

    Args:
        runs: executor of the tests.
    """

    def __init__(self, runs: TestRuns) -> None:
        self._runs = runs

    async def grade(self, row: TaskRow, patch: str, *, evaluation: bool = False) -> Grade:  # noqa: ARG002
        """Grade a testing agent's changes. Raises SandboxError."""
        return _grade_of(await examine(self._runs, row, reproduction_test(patch, author="")))

    def own_box(self, row: TaskRow, *, evaluation: bool = False) -> None:  # noqa: ARG002
        """Return None: tests are judged by their file."""
        return


class TestingAgent:
    """Collector of reproduction tests.

    Args:
        policy: writes the tests; a token or a chat policy.
        runs: executor of the tests, for the keep rule.
        pool: sandboxes in which the agent works.
        agent: limits and tool format; its prompt should be ``reproduction_v1``.
        observer: receives the events of the rollouts.
    """

    __test__ = False

    def __init__(
        self,
        *,
        policy: Policy,
        runs: TestRuns,
        pool: SandboxPool,
        agent: AgentConfig,
        sandbox: SandboxConfig,
        rollout: RolloutConfig,
        observer: RolloutObserver,
        seed: int,
        run_id: str,
        sampling: SamplingParams | None = None,
    ) -> None:
        self._size = rollout.group_size
        self._scheduler = RolloutScheduler(
            environments=SweEnvironments(
                pool=pool, grader=KeepRuleGrader(runs), agent=agent, sandbox=sandbox, run_id=run_id
            ),
            policy=policy,
            agent=agent,
            rollout=rollout,
            seed=seed,
            observer=observer,
            sampling=sampling,
        )

    async def collect(
        self, rows: Sequence[TaskRow], *, phase: str = "train", iteration: int = 0
    ) -> list[Group]:
        """Roll out ``rollout.group_size`` testing agents for each task; a reward of 1 is a kept test.

        The policy and its environment get tasks without their answers.
        """
        requests = [
            GroupRequest(row=visible_row(row), iteration=iteration, phase=phase, size=self._size)
            for row in rows
        ]
        return await self._scheduler.collect(requests)


def written_tests(trajectories: Sequence[Trajectory]) -> tuple[ReproductionTest, ...]:
    """Return the distinct tests that testing agents wrote for a task, in order, not yet examined.

    Trajectories without a test file are left out; of equal tests the first is kept.
    """
    by_digest: dict[str, ReproductionTest] = {}
    for trajectory in trajectories:
        key = trajectory.key
        test = reproduction_test(
            trajectory.patch, author=f"{key.phase}/{key.iteration}/{key.task_id}/{key.index}"
        )
        if test.content:
            by_digest.setdefault(test.digest, test)
    return tuple(by_digest.values())


def reproduction_test(patch: str, *, author: str) -> ReproductionTest:
    """Return the test file that a testing agent's changes add; its other changes are ignored."""
    section = "".join(part.text for part in split_patch(patch) if part.paths == (TEST_FILE,))
    try:
        state = apply_patch({}, section).files.get(TEST_FILE)
    except PatchError:  # the repository has a file of that name: changes to it add no test file
        state = None
    content = state.data.decode("utf-8", "replace") if state is not None else ""
    return ReproductionTest(author=author, content=content)


def _grade_of(examined: Examination) -> Grade:
    if examined.rejection is None:
        verdict = Verdict.PASSED
    else:
        verdict = _VERDICTS.get(examined.rejection, Verdict.FAILED)
    return Grade(
        verdict=verdict,
        reward=float(examined.kept),
        tests=tuple(
            TestResult(test_id=test, kind=TestKind.FAIL_TO_PASS, outcome=TestOutcome.FAILED)
            for test in examined.failing
        ),
        log=examined.log,
        detail=": ".join(part for part in (examined.rejection or "", examined.detail) if part),
    )
