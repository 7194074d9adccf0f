"""Grades patches: hidden tests in a fresh sandbox decide, not anything the agent left behind.

    image + patch (without test files and test configuration) + the answer's test files
      → tests, network off → signed report → every required test passed? → verdict

An infrastructure failure is never a reward of 0: it is tried again in a fresh sandbox, then the
verdict is ``infra_error`` and the reward None. To add a grade rule: a function in ``_RULES``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.patches import is_test_path, keep_files, patch_hash
from engine.datasets.testrun import TestRun, run_tests
from engine.errors import DatasetError, PatchError, SandboxError
from engine.sandbox.base import Sandbox, SandboxBackend, SandboxLimits, SandboxSpec
from engine.sandbox.failures import Decision, decide, own_doing
from engine.types import Grade, TaskRow, TestKind, TestOutcome, TestResult, Verdict

_LOG_CHARS = 20_000
_START_ALLOWANCE_S = 60.0
_NAMED_TESTS = 3


class Grader:
    """Judges patches, at most ``config.max_parallel`` at once.

    Args:
        backend: where tests run.
        config: time limits, parallelism, re-use of verdicts.
        sandbox: limits of the grading sandboxes.
        run_id: on whose behalf.
    """

    def __init__(
        self, *, backend: SandboxBackend, config: GradingConfig, sandbox: SandboxConfig, run_id: str
    ) -> None:
        self._backend = backend
        self._config = config
        self._sandbox = sandbox
        self._run_id = run_id
        self._permits = asyncio.Semaphore(config.max_parallel)
        self._verdicts: dict[tuple[str, str], asyncio.Future[Grade]] = {}

    async def grade(self, row: TaskRow, patch: str) -> Grade:
        """Judge a patch.

        On a task proven deterministic the verdict of an identical patch is re-used, also while that
        one is still being graded; an infrastructure failure never is.

        Raises:
            DatasetError: the task's answer cannot be graded (no tests, unknown rule).
        """
        if row.answer.grade_rule not in _RULES:
            raise DatasetError(f"task {row.task.instance_id}: unknown grade rule '{row.answer.grade_rule}'")
        if not row.answer.fail_to_pass or not row.answer.test_command:
            raise DatasetError(f"task {row.task.instance_id} has no required tests or no test command")
        if not (self._config.reuse_verdicts and row.answer.deterministic):
            return await self._grade(row, patch)
        key = (row.task.id, patch_hash(patch))
        while (known := self._verdicts.get(key)) is not None:
            # Shielded: this waiter may be cancelled, the others still want the verdict.
            grade = await asyncio.shield(known)
            if grade.verdict is not Verdict.INFRA_ERROR:
                return replace(grade, reused=True, seconds=0.0)
        return await self._grade_once(key, row, patch)

    async def _grade_once(self, key: tuple[str, str], row: TaskRow, patch: str) -> Grade:
        future: asyncio.Future[Grade] = asyncio.get_running_loop().create_future()
        self._verdicts[key] = future
        grade = Grade(verdict=Verdict.INFRA_ERROR, reward=None, detail="grading was cancelled")
        try:
            grade = await self._grade(row, patch)
        finally:
            if grade.verdict is Verdict.INFRA_ERROR:
                del self._verdicts[key]
            future.set_result(grade)
        return grade

    async def _grade(self, row: TaskRow, patch: str) -> Grade:
        async with self._permits:
            started = time.monotonic()
            failures: list[str] = []
            while True:
                try:
                    grade = await self._attempt(row, patch)
                except SandboxError as error:
                    failures.append(error.kind)
                    decision = decide(failures, retries=self._sandbox.start_retries)
                    if decision is Decision.RETRY:
                        continue
                    grade = _given_up(decision, error)
                return replace(grade, seconds=time.monotonic() - started)

    async def _attempt(self, row: TaskRow, patch: str) -> Grade:
        kept, dropped = keep_files(
            patch, lambda path: not is_test_path(path) and path not in row.answer.test_files
        )
        note = f"left out of the patch: {', '.join(sorted(set(dropped)))}" if dropped else ""
        async with self._backend.open(self._spec(row)) as box:
            if kept.strip():
                try:
                    await box.apply_patch(kept)
                except PatchError as error:
                    return _grade(row, Verdict.PATCH_FAILED, TestRun(), str(error), note)
            elif patch.strip() and not dropped:
                return _grade(row, Verdict.PATCH_FAILED, TestRun(), "no file header in the patch", note)
            await _restore_tests(box, row)
            run = await run_tests(box, row.answer.test_command, timeout_s=self._config.timeout_s)
        verdict, detail = _judge(row, run)
        return _grade(row, verdict, run, detail, note)

    def _spec(self, row: TaskRow) -> SandboxSpec:
        return SandboxSpec(
            image=row.task.image,
            workdir=row.task.workdir,
            run_id=self._run_id,
            name=f"grade {row.task.instance_id}",
            lane="grade",
            limits=SandboxLimits(
                memory_mb=self._sandbox.memory_mb,
                processes=self._sandbox.processes,
                disk_mb=self._sandbox.disk_mb,
                lifetime_s=self._config.timeout_s + _START_ALLOWANCE_S,
            ),
        )


def _given_up(decision: Decision, error: SandboxError) -> Grade:
    """The grade when fresh sandboxes did not help: a failure of the patch, or of nobody the agent knows."""
    problem = str(error) or type(error).__name__
    if decision is Decision.COUNT:
        return Grade(verdict=Verdict.FAILED, reward=0.0, detail=own_doing(error.kind, problem))
    return Grade(verdict=Verdict.INFRA_ERROR, reward=None, detail=f"the grading sandbox failed: {problem}")


async def _restore_tests(box: Sandbox, row: TaskRow) -> None:
    """Put the hidden tests in place; the others are the image's, because no patch may touch them."""
    for path, content in row.answer.test_files.items():
        await box.write_file(f"{row.task.workdir}/{path}", content.encode())


def _judge(row: TaskRow, run: TestRun) -> tuple[Verdict, str]:
    if run.timed_out:
        return Verdict.TEST_TIMEOUT, run.problem
    if run.forged:
        return Verdict.TAMPERED, run.problem
    wrong = _RULES[row.answer.grade_rule](row, run)
    if not wrong:
        return Verdict.PASSED, ""
    named = ", ".join(f"{test} {outcome}" for test, outcome in list(wrong.items())[:_NAMED_TESTS])
    more = f" and {len(wrong) - _NAMED_TESTS} more" if len(wrong) > _NAMED_TESTS else ""
    return Verdict.FAILED, f"{run.problem}: {named}{more}" if run.problem else f"{named}{more}"


def _fail_to_pass_and_pass_to_pass(row: TaskRow, run: TestRun) -> Mapping[str, TestOutcome]:
    """Required tests that did not pass; a missing or skipped one has not passed."""
    outcomes = run.outcomes(row.answer.fail_to_pass + row.answer.pass_to_pass)
    return {test: outcome for test, outcome in outcomes.items() if outcome is not TestOutcome.PASSED}


_RULES: Mapping[str, Callable[[TaskRow, TestRun], Mapping[str, TestOutcome]]] = {
    "f2p_p2p": _fail_to_pass_and_pass_to_pass
}


def _grade(row: TaskRow, verdict: Verdict, run: TestRun, detail: str, note: str) -> Grade:
    kinds = [(test, TestKind.FAIL_TO_PASS) for test in row.answer.fail_to_pass]
    kinds += [(test, TestKind.PASS_TO_PASS) for test in row.answer.pass_to_pass]
    results = [
        TestResult(test_id=test, kind=kind, outcome=run.case(test).outcome, seconds=run.case(test).seconds)
        for test, kind in kinds
    ]
    return Grade(
        verdict=verdict,
        reward=1.0 if verdict is Verdict.PASSED else 0.0,
        tests=tuple(results),
        log=_clipped(run.log),
        detail="; ".join(part for part in (detail, note) if part),
    )


def _clipped(log: str) -> str:
    if len(log) <= _LOG_CHARS:
        return log
    half = _LOG_CHARS // 2
    return f"{log[:half]}\n… {len(log) - 2 * half} characters left out …\n{log[-half:]}"
