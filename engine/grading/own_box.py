"""Grading in the agent's own sandbox, for tasks about the state of a system.

    sandbox as for an agent ── hash test runners ── agent ── hash again ── test files ── tests ── rule

The sandbox exists only once: its verdict is never reused, and no mutated tests run in it. A root agent may
have replaced unchecked programs; a fresh sandbox is safer if a patch contains all changes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from engine.errors import DatasetError, PatchError
from engine.grading.evidence import first_names
from engine.grading.excuses import fail_unproven_skips
from engine.grading.execution import RunExecutor, RunResult, unjudged
from engine.grading.grades import grade_of
from engine.grading.running.agent_leftovers import altered_runners, runner_hashes
from engine.grading.solution import has_solution, solve
from engine.patches.apply import touched
from engine.sandbox.base import Sandbox
from engine.sandbox.integrity import prepare_for_agent
from engine.types import CounterfactualOutcome, Grade, TaskRow, Verdict


class OwnBoxGrading:
    """Grading of one rollout in the sandbox in which its agent works.

    Args:
        row: task of the rollout.
        runs: executor of the tests.
        timeout_s: time limit of the tests.
        outcome: reason why a rollout that passed is not audited.
    """

    def __init__(
        self, row: TaskRow, runs: RunExecutor, *, timeout_s: float, outcome: CounterfactualOutcome
    ) -> None:
        self.timeout_s = timeout_s
        self._row = row
        self._runs = runs
        self._outcome = outcome
        self._before: Mapping[str, str] | None = None

    async def begin(self, box: Sandbox) -> None:
        """Hash the files that run the tests, before the agent starts.

        Raises:
            SandboxError: the sandbox failed.
        """
        self._before = await runner_hashes(box, self._row.answer)

    async def grade(self, box: Sandbox, patch: str) -> Grade:
        """Grade the sandbox in the agent's final state.

        Args:
            patch: changes below the workdir; may lack changes that no patch expresses.

        Raises:
            SandboxError: the sandbox failed.
        """
        began = time.monotonic()
        grade = await self._grade_of(await self._run(box, patch))
        return replace(grade, seconds=time.monotonic() - began)

    async def grade_solution(self, *, applied: bool) -> Grade:
        """Grade the row's own solution, or no change at all, in a fresh sandbox prepared as for an agent.

        Raises:
            DatasetError: the row has no solution, or it fails.
            SandboxError: infrastructure failed in every attempt.
        """
        if applied and not has_solution(self._row):
            raise DatasetError("the row has neither a gold patch nor a solution script")
        began = time.monotonic()
        result = await self._runs.repeated(lambda: self._run_solution(applied=applied))
        return replace(await self._grade_of(result), seconds=time.monotonic() - began)

    async def _run_solution(self, *, applied: bool) -> RunResult:
        row, patch = self._row, ""
        async with self._runs.open(row, lifetime_s=2 * self.timeout_s) as box:
            await prepare_for_agent(
                box, setup_patch=row.answer.setup_patch, hidden_paths=row.answer.hidden_paths
            )
            await self.begin(box)
            if applied:
                await solve(box, row, timeout_s=self.timeout_s)
                with suppress(PatchError):
                    patch = await box.diff()
            return await self._run(box, patch)

    async def _run(self, box: Sandbox, patch: str) -> RunResult:
        if self._before is None:
            raise RuntimeError("'begin' was not called before the agent started")
        if altered := await altered_runners(box, self._before):
            return unjudged(
                Verdict.TAMPERED, f"files that run the tests were replaced: {first_names(altered)}"
            )
        changed: Sequence[str] = ()
        with suppress(PatchError):
            changed = await asyncio.to_thread(touched, patch)
        return await self._runs.execute_in(box, self._row, changed=changed, timeout_s=self.timeout_s)

    async def _grade_of(self, result: RunResult) -> Grade:
        grade = await grade_of(result)
        if result.score <= 0:
            return grade
        return replace(fail_unproven_skips(grade, None), counterfactual=self._outcome)
