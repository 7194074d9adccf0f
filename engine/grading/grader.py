"""Grader of patches: only hidden tests in a fresh sandbox decide, never anything the agent left behind.

    first run ── fails ─────────────────────────────────────────────────────────▶ verdict
        └────── passes ── reference of the row, proven now where there is none
                              ├── skips and expected failures as under the gold patch
                              └── extra runs, true and false, in random order ──▶ verdict

An infrastructure failure is never a reward of 0: it is tried again in a fresh sandbox, then the
verdict is ``infra_error`` and the reward None. To add a grade rule: see ``engine.grading.rules``.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from engine.config.rollout import ExtraRuns, GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.testing.toolchain import DRIVER
from engine.errors import DatasetError, SandboxError
from engine.grading.counterfactual.base import (
    Reference,
    ReferenceStore,
    Variant,
    variant_files,
    variant_row,
)
from engine.grading.counterfactual.prover import Prover
from engine.grading.counterfactual.references import References
from engine.grading.counterfactual.runs import Confirmation, confirm, draw_runs
from engine.grading.excuses import excused, without_excuses
from engine.grading.execution import NO_OVERLAY, RunExecutor, RunResult
from engine.grading.grades import grade_of, noted
from engine.grading.logs.parsers import find_parser
from engine.grading.own_box import OwnBoxGrading
from engine.grading.rules import RULES
from engine.grading.rules.reward_file import VERIFIER_FAILED
from engine.grading.running.log_parser import LogParser
from engine.patches.sections import patch_hash
from engine.sandbox.base import SandboxBackend
from engine.types import CounterfactualOutcome, Grade, GradeRule, TaskRow, TestOutcome, Verdict

_FROM_PATCH = "graded from the patch in a fresh sandbox, without what else the agent left in its own"
_NEEDS_PARSER = frozenset({GradeRule.F2P_P2P, GradeRule.MULTI_SWE})
_OF_THE_MACHINE = frozenset({Verdict.INFRA_ERROR, Verdict.TEST_TIMEOUT})
"""Verdicts that say as much about the machine as about the patch: not kept for identical patches."""


@dataclass(frozen=True, slots=True)
class _Job:
    """One patch to grade, and how."""

    row: TaskRow
    patch: str
    timeout_s: float
    extra: ExtraRuns | None
    """Extra runs of a patch that passed; None for a trusted patch."""


@dataclass(frozen=True, slots=True)
class _Passed:
    """A patch whose first run passed, or would have without signs of tampering that gold patches may give."""

    job: _Job
    extra: ExtraRuns
    first: RunResult
    grade: Grade
    """Grade of the first run."""
    checked: bool
    """Whether extra runs are wanted."""
    overlaid: bool
    """Whether the first run looked like the extra ones from inside."""

    @property
    def needs_reference(self) -> bool:
        """Return whether the reference of the row decides anything."""
        return self.checked or bool(self.first.signs) or bool(excused(self.grade.tests))

    async def cleared(self, signs: Collection[str]) -> _Passed:
        """Return the submission judged without signs of tampering that the gold patch gives, too."""
        first = self.first.cleared(signs)
        return replace(self, first=first, grade=replace(await grade_of(first), seconds=self.grade.seconds))


class Grader:
    """Grades patches, at most ``config.max_parallel`` at once.

    Args:
        backend: the sandboxes in which tests run.
        config: time limits, parallelism, re-use of verdicts, counterfactual runs.
        sandbox: limits of the grading sandboxes.
        run_id: the run that owns the sandboxes.
        store: references of validated rows, where those made at first use are kept too; None keeps them
            in memory.
    """

    def __init__(
        self,
        *,
        backend: SandboxBackend,
        config: GradingConfig,
        sandbox: SandboxConfig,
        run_id: str,
        store: ReferenceStore | None = None,
    ) -> None:
        self._config = config
        self._runs = RunExecutor(backend=backend, config=config, sandbox=sandbox, run_id=run_id)
        self._gradings = asyncio.Semaphore(config.max_parallel)
        self._permits = asyncio.Semaphore(config.max_parallel)
        self._verdicts: dict[tuple[object, ...], asyncio.Future[Grade]] = {}
        first_use = config.counterfactual.prove == "first_use"
        prover = Prover(backend=backend, config=config, sandbox=sandbox, run_id=run_id)
        self._references = References(
            store=store,
            prove=prover if first_use else None,
            max_proofs=max(1, config.max_parallel // 2),
        )

    async def grade(
        self, row: TaskRow, patch: str, *, evaluation: bool = False, trusted: bool = False
    ) -> Grade:
        """Grade a patch.

        On a task proven deterministic the verdict of an identical patch is re-used, also while that
        one is still being graded; an infrastructure failure never is.

        Args:
            patch: git-format, relative to the tree that agents start with.
            evaluation: whether the time limit and the extra runs of evaluations apply.
            trusted: whether nobody had a reason to forge the patch (the row's own solution, no change at
                all): its first run decides.

        Raises:
            DatasetError: the task's answer cannot be graded (no tests, unknown rule or parser).
        """
        await asyncio.to_thread(check_gradable, row)  # a parser's package may have thousands of modules
        settings = self._config.counterfactual
        extra = None if trusted else settings.evaluation if evaluation else settings.training
        job = _Job(row, patch, self.timeout_s(row, evaluation=evaluation), extra)
        if not (self._config.reuse_verdicts and row.answer.deterministic):
            return await self._grade(job)
        runs = None if extra is None else (extra.true_runs, extra.false_runs)
        key = (row.task.id, patch_hash(patch), job.timeout_s, runs)
        while (known := self._verdicts.get(key)) is not None:
            # Shielded: this waiter may be cancelled, the others still want the verdict.
            grade = await asyncio.shield(known)
            if grade.verdict is not Verdict.INFRA_ERROR:
                return replace(grade, reused=True, seconds=0.0, extra_runs=0, extra_seconds=0.0)
        return await self._grade_once(key, job)

    def own_box(self, row: TaskRow, *, evaluation: bool = False) -> OwnBoxGrading | None:
        """Return the grading of one rollout in its agent's sandbox; None where patches are graded.

        It takes no place among the gradings: its sandbox is open already, and gradings that wait for
        sandboxes would wait for it.

        Raises:
            DatasetError: the task's answer cannot be graded.
        """
        if not (row.answer.own_box and self._config.own_box):
            return None
        check_gradable(row)
        off = self._config.counterfactual.mode == "off"
        return OwnBoxGrading(
            row,
            self._runs,
            timeout_s=self.timeout_s(row, evaluation=evaluation),
            outcome=CounterfactualOutcome.OFF if off else CounterfactualOutcome.OWN_BOX,
        )

    async def grade_solution(self, own_box: OwnBoxGrading, *, applied: bool) -> Grade:
        """Grade the solution of a task that is graded in the agent's sandbox, or no change at all.

        Raises:
            DatasetError: the task has no solution, or it fails.
        """
        async with self._gradings:
            try:
                return await own_box.grade_solution(applied=applied)
            except SandboxError as error:
                return _lost(error)

    def timeout_s(self, row: TaskRow, *, evaluation: bool = False) -> float:
        """Return the time limit of the tests, seconds: the row's own, else the run's."""
        if row.answer.timeout_s is not None:
            return row.answer.timeout_s
        if evaluation and self._config.evaluation_timeout_s is not None:
            return self._config.evaluation_timeout_s
        return self._config.timeout_s

    async def _grade_once(self, key: tuple[object, ...], job: _Job) -> Grade:
        future: asyncio.Future[Grade] = asyncio.get_running_loop().create_future()
        self._verdicts[key] = future
        grade = Grade(verdict=Verdict.INFRA_ERROR, reward=None, detail="grading was cancelled")
        try:
            grade = await self._grade(job)
        finally:
            if grade.verdict in _OF_THE_MACHINE:
                del self._verdicts[key]
            # Verdicts are kept as long as the run; a whole log is megabytes.
            future.set_result(replace(grade, whole_log=b""))
        return grade

    async def _grade(self, job: _Job) -> Grade:
        try:
            grade = await self._decide(job)
            return noted(grade, _FROM_PATCH) if job.row.answer.own_box else grade
        except SandboxError as error:
            return _lost(error)

    async def _decide(self, job: _Job) -> Grade:
        """Return the grade of a patch. Raises SandboxError where infrastructure failed in every attempt."""
        async with self._gradings:
            started = time.monotonic()
            known = await self._references.known(job.row) if job.extra is not None else None
            overlay = (
                known.files if known is not None and self._config.counterfactual.mode != "off" else NO_OVERLAY
            )
            first = await self._run(job, overlay)
            if job.extra is None:  # nobody tampered with it, whatever it looks like
                first = first.cleared(first.signs)
            elif known is not None:
                first = first.cleared(known.signs)
            grade = replace(await grade_of(first), seconds=time.monotonic() - started)
            if job.extra is None or (first.score <= 0 and not _is_doubtful(first, known)):
                return grade
            passed = _Passed(job, job.extra, first, grade, checked=self._is_checked(), overlaid=bool(overlay))
            if known is not None or not passed.needs_reference:
                return await self._concluded(passed, known)
        # A proof takes longer than a grading, and has a limit of its own.
        reference = await self._references.get(job.row)
        async with self._gradings:
            return await self._concluded(passed, reference)

    def _is_checked(self) -> bool:
        """Draw whether a submission that passed gets extra runs."""
        settings = self._config.counterfactual
        rate = 0.0 if settings.mode == "off" else settings.sample_rate
        return rate is None or secrets.SystemRandom().random() < rate

    async def _concluded(self, passed: _Passed, reference: Reference | None) -> Grade:
        """Return the grade of a patch whose first run passed, or may have."""
        began = time.monotonic()
        if passed.first.signs:
            unknown = (VERIFIER_FAILED, *passed.first.evidence.data_signs)
            passed = await passed.cleared(reference.signs if reference is not None else unknown)
        if passed.first.score <= 0:
            return passed.grade
        grade = without_excuses(passed.grade, reference)
        if grade.reward:
            grade = await self._confirmed(passed, grade, reference)
        extra_s = time.monotonic() - began
        return replace(grade, seconds=grade.seconds + extra_s, extra_seconds=extra_s)

    async def _confirmed(self, passed: _Passed, grade: Grade, reference: Reference | None) -> Grade:
        """Return the grade after the extra runs."""
        job, extra = passed.job, passed.extra
        if not passed.checked:
            return replace(grade, counterfactual=self._unchosen())
        if reference is None or not reference.variants:
            return self._unchecked(job.row, grade, reference)
        if not passed.overlaid:  # from inside the first run looked otherwise than the extra ones
            extra = extra.model_copy(update={"true_runs": max(1, extra.true_runs)})
        runs = draw_runs(extra, reference)

        async def execute(reference: Reference, variant: Variant | None) -> RunResult:
            shown = replace(job, row=variant_row(job.row, variant))
            return (await self._run(shown, variant_files(reference, variant))).cleared(reference.signs)

        found = await confirm(passed.first, reference, runs, execute)
        return await _with_confirmation(grade, found)

    def _unchosen(self) -> CounterfactualOutcome:
        off = self._config.counterfactual.mode == "off"
        return CounterfactualOutcome.OFF if off else CounterfactualOutcome.NOT_SAMPLED

    def _unchecked(self, row: TaskRow, grade: Grade, reference: Reference | None) -> Grade:
        """Return the grade of a submission that passed and has no extra runs, with the reason."""
        if reference is None and self._references.problem(row):
            grade = replace(grade, counterfactual=CounterfactualOutcome.UNPROVEN)
            return noted(grade, "graded without false tests: their proof failed, see the task's health")
        validated_only = self._config.counterfactual.prove == "validated_only"
        unproven = reference is None and validated_only
        outcome = CounterfactualOutcome.UNPROVEN if unproven else CounterfactualOutcome.NO_MUTANTS
        return replace(grade, counterfactual=outcome)

    async def _run(self, job: _Job, overlay: Mapping[str, bytes]) -> RunResult:
        async with self._permits:
            return await self._runs.execute(job.row, job.patch, timeout_s=job.timeout_s, overlay=overlay)


def _is_doubtful(first: RunResult, known: Reference | None) -> bool:
    """Return whether a run only looks tampered with as long as nothing is known of the gold patch's."""
    return known is None and first.verdict is not first.cleared(first.signs).verdict


def _lost(error: SandboxError) -> Grade:
    detail = f"the grading sandbox failed: {str(error) or type(error).__name__}"
    return Grade(verdict=Verdict.INFRA_ERROR, reward=None, detail=detail)


async def _with_confirmation(grade: Grade, found: Confirmation) -> Grade:
    """Return the grade of a first run with the result of the extra runs, and the log of one that decided."""
    grade = replace(grade, counterfactual=found.outcome, extra_runs=found.runs)
    if found.deciding is None:
        return grade
    decided = await grade_of(found.deciding)
    grade = replace(grade, log=decided.log, whole_log=decided.whole_log)
    if found.outcome is CounterfactualOutcome.FLAKY:
        tests, reward = decided.tests, decided.reward
        if found.variant:  # what it made false says nothing of the submission
            lost = {
                test: replace(test, outcome=TestOutcome.FAILED)
                for test in grade.tests
                if test.test_id in found.lost
            }
            tests, reward = tuple(lost.get(test, test) for test in grade.tests), 0.0
        return noted(replace(grade, verdict=Verdict.FAILED, reward=reward, tests=tests), found.detail)
    findings = tuple(dict.fromkeys([*grade.findings, *decided.findings, *found.findings]))
    grade = replace(grade, verdict=Verdict.TAMPERED, reward=0.0, findings=findings)
    return noted(grade, found.detail)


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
    if LogParser.of(answer) is not None and answer.own_box:
        raise DatasetError(f"task {task}: a parser in a fresh sandbox and 'own_box' exclude each other")
