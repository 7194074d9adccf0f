"""Execution of one grading run: a patch and the tests in a fresh sandbox, judged by the row's rule.

image + setup patch + patch (without tests, their configuration, installed packages)
  + the answer's test files → tests, network off → evidence → grade rule → verdict
"""

from __future__ import annotations

import asyncio
import errno
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.errors import HostileInputError, PatchError, SandboxError
from engine.grading.evidence import Evidence, Judgement, first_names, required
from engine.grading.rules import RULES
from engine.grading.running.agent_leftovers import put_tests_in_place
from engine.grading.running.driver import run_driver
from engine.grading.running.image_answers import remove_answers
from engine.grading.running.log_parser import LIFETIME_S, LogParser, without_parser
from engine.grading.running.placement import PlacementError, place_files
from engine.grading.running.request import RunRequest
from engine.grading.running.scripts import run_script
from engine.grading.solution import has_solution
from engine.grading.submission.apply import AppliedPatch, apply_graded
from engine.grading.submission.filter import FilteredPatch
from engine.isolation import run_isolated
from engine.patches.apply import Changes
from engine.sandbox.base import Sandbox, SandboxBackend, SandboxLimits, SandboxSpec
from engine.sandbox.failures import retried
from engine.sandbox.integrity import SCRUB_S
from engine.testing.toolchain import DRIVER
from engine.types import TaskAnswer, TaskRow, TestOutcome, TestResult, Verdict

NOTHING_APPLIED = AppliedPatch(filtered=FilteredPatch(changes=Changes({}, ())))
NO_OVERLAY: Mapping[str, bytes] = MappingProxyType({})
_PREPARATION_S = SCRUB_S + 300.0
"""Time to scrub the git history, and for start, set-up, patch, hidden files and their hashes."""
_PROBE_BYTES = 64 << 10
Inspection = Callable[[Sandbox], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Result of one grading run."""

    verdict: Verdict
    detail: str = ""
    """Reason of the verdict; empty when the patch passed."""
    applied: AppliedPatch
    evidence: Evidence
    judgement: Judgement

    @property
    def signs(self) -> tuple[str, ...]:
        """Return signs of tampering and ignored failures, which an honest project's own tests may cause."""
        evidence, judgement = self.evidence, self.judgement
        return (*evidence.signs, *evidence.data_signs, *judgement.signs, *judgement.overlooked)

    def cleared(self, known: Collection[str]) -> RunResult:
        """Return the run judged without signs that are known from runs of the gold patch."""
        if not self.signs:
            return self
        verdict, detail = _verdict(self.evidence, self.judgement, known)
        return replace(self, verdict=verdict, detail=detail)

    @property
    def score(self) -> float:
        """Return the reward of the run: 1 when it passed, else that of a rule with partial rewards."""
        if self.verdict is Verdict.PASSED:
            return 1.0
        if self.verdict is not Verdict.FAILED or self.judgement.passed:
            return 0.0
        return self.judgement.reward or 0.0


class RunExecutor:
    """Executes grading runs, each in a fresh sandbox.

    Args:
        backend: the sandboxes in which tests run.
        config: settings of the rules.
        sandbox: limits of the grading sandboxes.
        run_id: the run that owns the sandboxes.
    """

    def __init__(
        self, *, backend: SandboxBackend, config: GradingConfig, sandbox: SandboxConfig, run_id: str
    ) -> None:
        self._backend = backend
        self._config = config
        self._sandbox = sandbox
        self._run_id = run_id

    async def execute(
        self,
        row: TaskRow,
        patch: str,
        *,
        timeout_s: float,
        overlay: Mapping[str, bytes] = NO_OVERLAY,
        inspect: Inspection | None = None,
    ) -> RunResult:
        """Run the row's tests on the tree with a patch; retry after infrastructure failures.

        Args:
            patch: git-format, relative to the tree that agents start with.
            timeout_s: time limit of the tests.
            overlay: path, relative to the workdir or absolute, → content of test files that are written
                right before the tests start.
            inspect: called with the sandbox after the tests.

        Raises:
            SandboxError: infrastructure failed in every attempt; failures of patch and tests are results.
        """
        return await self.repeated(lambda: self._once(row, patch, timeout_s, overlay, inspect))

    async def repeated(self, attempt: Callable[[], Awaitable[RunResult]]) -> RunResult:
        """Return the result of a run that is retried after infrastructure failures.

        Raises:
            SandboxError: infrastructure failed in every attempt.
        """
        return await retried(
            attempt,
            retries=self._sandbox.start_retries,
            counted=lambda problem: unjudged(Verdict.FAILED, problem),
        )

    async def _once(
        self,
        row: TaskRow,
        patch: str,
        timeout_s: float,
        overlay: Mapping[str, bytes],
        inspect: Inspection | None,
    ) -> RunResult:
        parser, logs = LogParser.of(row.answer), None
        async with self.open(row, lifetime_s=timeout_s) as box:
            if row.answer.setup_patch:
                await _set_up(box, row)
            applied = await apply_graded(box, patch, row)
            if not applied.problem:
                await remove_answers(box, row)
            if problem := applied.problem or await _restore_tests(box, row, applied):
                return unjudged(Verdict.PATCH_FAILED, problem, applied=applied, tests=_missing(row.answer))
            changed = applied.filtered.changes.paths
            evidence = await gather(
                box,
                RunRequest(answer=row.answer, timeout_s=timeout_s, changed=changed, overlay=overlay),
            )
            if parser is not None and not evidence.problem:
                logs = await parser.read_logs(box)
            if inspect is not None:
                await inspect(box)
        if parser is not None and logs is not None:
            async with self.open(row, lifetime_s=LIFETIME_S) as fresh:
                evidence = await parser.parse(fresh, row.answer, logs, evidence)
        return await self._judged(row, evidence, applied)

    async def execute_in(
        self, box: Sandbox, row: TaskRow, *, changed: Collection[str], timeout_s: float
    ) -> RunResult:
        """Run the row's tests in a sandbox in its agent's final state.

        Args:
            changed: paths, relative to the workdir, that the agent changed.

        Raises:
            SandboxError: the sandbox failed.
        """
        if problem := await put_tests_in_place(box, row.answer):
            return unjudged(Verdict.PATCH_FAILED, problem, tests=_missing(row.answer))
        evidence = await gather(
            box,
            RunRequest(answer=row.answer, timeout_s=timeout_s, changed=changed, overlay=NO_OVERLAY),
        )
        return await self._judged(row, evidence, NOTHING_APPLIED)

    async def _judged(self, row: TaskRow, evidence: Evidence, applied: AppliedPatch) -> RunResult:
        if row.answer.own_box or not has_solution(row):  # no run of a solution could excuse them
            evidence = replace(evidence, data_signs=())
        judgement = await judge(row, evidence, self._config)
        verdict, detail = _verdict(evidence, judgement)
        return RunResult(
            verdict=verdict, detail=detail, applied=applied, evidence=evidence, judgement=judgement
        )

    def open(self, row: TaskRow, *, lifetime_s: float) -> AbstractAsyncContextManager[Sandbox]:
        """Open a grading sandbox with a lifetime of ``lifetime_s`` after start and preparation."""
        spec = SandboxSpec(
            image=row.task.image,
            workdir=row.task.workdir,
            env=row.task.env,
            run_id=self._run_id,
            name=f"grade {row.task.instance_id}",
            lane="grade",
            limits=SandboxLimits(
                memory_mb=self._sandbox.memory_mb,
                processes=self._sandbox.processes,
                disk_mb=self._sandbox.disk_mb,
                lifetime_s=lifetime_s + _PREPARATION_S,
            ),
        )
        return self._backend.open(spec)


async def gather(box: Sandbox, request: RunRequest) -> Evidence:
    """Run an answer's tests on the current tree and return the evidence.

    Raises:
        SandboxError: the sandbox failed; failures of the tests are evidence.
    """
    run = run_driver if DRIVER in request.answer.test_command else run_script
    evidence = await run(box, request)
    return replace(evidence, disk_full=evidence.is_incomplete and await _has_full_disk(box))


async def judge(row: TaskRow, evidence: Evidence, config: GradingConfig) -> Judgement:
    """Apply the row's rule to the evidence; a log that cannot be parsed within limits fails."""
    rule = RULES[row.answer.grade_rule]
    if evidence.signed is not None:
        return await asyncio.to_thread(rule, row, evidence, config)
    try:
        return await run_isolated(partial(rule, row, replace(evidence, log=""), config))
    except HostileInputError as error:
        return Judgement(passed=False, tests=_missing(row.answer), detail=str(error))


async def _set_up(box: Sandbox, row: TaskRow) -> None:
    """Apply the task's setup patch. Raises SandboxError when it fails: the graded patch is not at fault."""
    try:
        await box.apply_patch(row.answer.setup_patch)
    except PatchError as error:
        raise SandboxError(f"task {row.task.instance_id}: its setup patch does not apply: {error}") from error


async def _restore_tests(box: Sandbox, row: TaskRow, applied: AppliedPatch) -> str:
    """Write the hidden tests; other tests are the image's, because no patch may change them.

    Returns:
        Reason why a change of the patch prevents a test file; empty if all files were written.

    Raises:
        PlacementError: a file cannot be written, and the patch is not at fault.
    """
    try:
        await place_files(box, without_parser(row.answer, LogParser.of(row.answer)))
    except PlacementError as error:
        changed = (f"{row.task.workdir}/{path}" for path in applied.filtered.changes.paths)
        if not error.is_caused_by(changed):
            raise
        return f"{error}; the patch changed this path"
    return ""


def _verdict(
    evidence: Evidence, judgement: Judgement, known_signs: Collection[str] = ()
) -> tuple[Verdict, str]:
    if evidence.timed_out:
        return Verdict.TEST_TIMEOUT, evidence.problem
    if evidence.disk_full:
        reason = "the sandbox's disk was full when the tests ended (sandbox.disk_mb limits it)"
        parts = (reason, evidence.problem, judgement.detail)
        return Verdict.FAILED, ": ".join(part for part in parts if part)
    if evidence.forged:
        return Verdict.TAMPERED, evidence.problem
    signs = [*evidence.signs, *judgement.signs]
    if judgement.passed or judgement.reward:
        signs += evidence.data_signs
    unknown = [sign for sign in signs if sign not in known_signs]
    if unknown:
        return Verdict.TAMPERED, f"signs of tampering: {first_names(unknown)}"
    if failed := [test for test in judgement.overlooked if test not in known_signs]:
        return Verdict.FAILED, f"the script succeeded, but {first_names(failed)}"
    if judgement.passed and not evidence.problem:
        return Verdict.PASSED, ""
    return Verdict.FAILED, ": ".join(part for part in (evidence.problem, judgement.detail) if part)


async def _has_full_disk(box: Sandbox) -> bool:
    """Return whether a small file can no longer be written to the folder of reports."""
    try:
        await box.write_file(f"/tmp/trainyard-{secrets.token_hex(8)}", bytes(_PROBE_BYTES))  # noqa: S108
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return False


def unjudged(
    verdict: Verdict, detail: str, *, applied: AppliedPatch | None = None, tests: tuple[TestResult, ...] = ()
) -> RunResult:
    """Return the result of a run that ended before its tests."""
    return RunResult(
        verdict=verdict,
        detail=detail,
        applied=applied or NOTHING_APPLIED,
        evidence=Evidence(),
        judgement=Judgement(passed=False, tests=tests),
    )


def _missing(answer: TaskAnswer) -> tuple[TestResult, ...]:
    return tuple(
        TestResult(test_id=test, kind=kind, outcome=TestOutcome.MISSING) for test, kind in required(answer)
    )
