"""Grader of patches: only hidden tests in a fresh sandbox decide, never anything the agent left behind.

An infrastructure failure is never a reward of 0: it is tried again in a fresh sandbox, then the
verdict is ``infra_error`` and the reward None. To add a grade rule: see ``engine.grading.rules``.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from dataclasses import replace

from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.testing.toolchain import DRIVER
from engine.errors import DatasetError, SandboxError
from engine.grading.execution import RunExecutor, RunResult
from engine.grading.parsers import find_parser
from engine.grading.patch_apply import AppliedPatch
from engine.grading.rules import RULES
from engine.patches.sections import patch_hash
from engine.sandbox.base import SandboxBackend
from engine.sandbox.failures import Decision, decide, own_doing
from engine.types import FindingKind, Grade, GradeRule, TamperFinding, TaskRow, Verdict

_LOG_CHARS = 20_000
_PACKED_BYTES = 4 << 20
_NEEDS_PARSER = frozenset({GradeRule.F2P_P2P, GradeRule.MULTI_SWE})


class Grader:
    """Grades patches, at most ``config.max_parallel`` at once.

    Args:
        backend: the sandboxes in which tests run.
        config: time limits, parallelism, re-use of verdicts.
        sandbox: limits of the grading sandboxes.
        run_id: the run that owns the sandboxes.
    """

    def __init__(
        self, *, backend: SandboxBackend, config: GradingConfig, sandbox: SandboxConfig, run_id: str
    ) -> None:
        self._config = config
        self._sandbox = sandbox
        self._runs = RunExecutor(backend=backend, config=config, sandbox=sandbox, run_id=run_id)
        self._permits = asyncio.Semaphore(config.max_parallel)
        self._verdicts: dict[tuple[str, str, float], asyncio.Future[Grade]] = {}

    async def grade(self, row: TaskRow, patch: str, *, evaluation: bool = False) -> Grade:
        """Grade a patch.

        On a task proven deterministic the verdict of an identical patch is re-used, also while that
        one is still being graded; an infrastructure failure never is.

        Args:
            patch: git-format, relative to the tree that agents start with.
            evaluation: whether the time limit for evaluations holds.

        Raises:
            DatasetError: the task's answer cannot be graded (no tests, unknown rule or parser).
        """
        check_gradable(row)
        timeout_s = self.timeout_s(row, evaluation=evaluation)
        if not (self._config.reuse_verdicts and row.answer.deterministic):
            return await self._grade(row, patch, timeout_s)
        key = (row.task.id, patch_hash(patch), timeout_s)
        while (known := self._verdicts.get(key)) is not None:
            # Shielded: this waiter may be cancelled, the others still want the verdict.
            grade = await asyncio.shield(known)
            if grade.verdict is not Verdict.INFRA_ERROR:
                return replace(grade, reused=True, seconds=0.0)
        return await self._grade_once(key, row, patch)

    def timeout_s(self, row: TaskRow, *, evaluation: bool = False) -> float:
        """Return the time limit of the tests, seconds: the row's own, else the run's."""
        if row.answer.timeout_s is not None:
            return row.answer.timeout_s
        if evaluation and self._config.evaluation_timeout_s is not None:
            return self._config.evaluation_timeout_s
        return self._config.timeout_s

    async def _grade_once(self, key: tuple[str, str, float], row: TaskRow, patch: str) -> Grade:
        future: asyncio.Future[Grade] = asyncio.get_running_loop().create_future()
        self._verdicts[key] = future
        grade = Grade(verdict=Verdict.INFRA_ERROR, reward=None, detail="grading was cancelled")
        try:
            grade = await self._grade(row, patch, key[2])
        finally:
            if grade.verdict is Verdict.INFRA_ERROR:
                del self._verdicts[key]
            # Verdicts are kept as long as the run; a whole log is megabytes.
            future.set_result(replace(grade, whole_log=b""))
        return grade

    async def _grade(self, row: TaskRow, patch: str, timeout_s: float) -> Grade:
        async with self._permits:
            started = time.monotonic()
            failures: list[str] = []
            while True:
                try:
                    grade = await self._attempt(row, patch, timeout_s)
                except SandboxError as error:
                    failures.append(error.kind)
                    decision = decide(failures, retries=self._sandbox.start_retries)
                    if decision is Decision.RETRY:
                        continue
                    grade = _given_up(decision, error)
                return replace(grade, seconds=time.monotonic() - started)

    async def _attempt(self, row: TaskRow, patch: str, timeout_s: float) -> Grade:
        return await _graded(await self._runs.execute(row, patch, timeout_s=timeout_s))


def _given_up(decision: Decision, error: SandboxError) -> Grade:
    """Return the grade after failures in all fresh sandboxes: failed, or an infrastructure failure."""
    problem = str(error) or type(error).__name__
    if decision is Decision.COUNT:
        return Grade(verdict=Verdict.FAILED, reward=0.0, detail=own_doing(error.kind, problem))
    return Grade(verdict=Verdict.INFRA_ERROR, reward=None, detail=f"the grading sandbox failed: {problem}")


def check_gradable(row: TaskRow) -> None:
    """Check that patches for the task can be graded. Raises DatasetError with the reason."""
    task, answer = row.task.instance_id, row.answer
    if answer.grade_rule not in RULES:
        raise DatasetError(f"task {task}: unknown grade rule '{answer.grade_rule}'")
    if not answer.test_command:
        raise DatasetError(f"task {task} has no required tests or no test command")
    signed = DRIVER in answer.test_command
    if signed and answer.grade_rule is not GradeRule.F2P_P2P:
        raise DatasetError(f"task {task}: the driver's report is judged by {GradeRule.F2P_P2P} only")
    if answer.grade_rule is GradeRule.F2P_P2P and not answer.fail_to_pass:
        raise DatasetError(f"task {task} has no required tests or no test command")
    if answer.grade_rule is GradeRule.MAP_EQUAL and not answer.expected:
        raise DatasetError(f"task {task} has no map of expected outcomes")
    if answer.grade_rule in _NEEDS_PARSER and not (signed or answer.log_parser):
        raise DatasetError(f"task {task} names no parser for its test log")
    if answer.log_parser:
        find_parser(answer.log_parser)


async def _graded(run: RunResult) -> Grade:
    """Return the grade of one run."""
    findings = run.applied.filtered.findings
    if run.verdict is Verdict.TAMPERED:
        findings += (TamperFinding(kind=FindingKind.FORGED_REPORT, detail=run.detail),)
    grade = Grade(verdict=run.verdict, reward=run.score, tests=run.judgement.tests)
    grade = await asyncio.to_thread(_with_log, grade, run.evidence.log)
    notes = (run.detail, _left_out(run.applied), run.applied.how)
    return replace(grade, detail="; ".join(note for note in notes if note), findings=findings)


def _left_out(applied: AppliedPatch) -> str:
    names = applied.filtered.left_out
    return f"left out of the patch: {', '.join(names)}" if names else ""


def _with_log(grade: Grade, log: str) -> Grade:
    """Return the grade with head and tail of its log, and a long log also in full."""
    if len(log) <= _LOG_CHARS:
        return replace(grade, log=log)
    whole = log
    while len(packed := zlib.compress(whole.encode("utf-8", "replace"))) > _PACKED_BYTES:
        whole = _head_and_tail(log, len(whole) // 2)
    return replace(grade, log=_head_and_tail(log, _LOG_CHARS), whole_log=packed)


def _head_and_tail(log: str, size: int) -> str:
    half = size // 2
    return f"{log[:half]}\n… {len(log) - 2 * half} characters left out …\n{log[-half:]}"
