"""Grader of patches: only hidden tests in a fresh sandbox decide, never anything the agent left behind.

    reference of the row ── true and false runs in random order ── run of the true tests ──▶ verdict
                                 └── fails for certain ────────────────────────────────────▶ verdict
    no reference yet ── run of the true tests ── reference, proven now ── the other runs ──▶ verdict
                             └── fails ────────────────────────────────────────────────────▶ verdict

An infrastructure failure is never a reward of 0: it is tried again in a fresh sandbox, then the
verdict is ``infra_error`` and the reward None. To add a grade rule: see ``engine.grading.rules``.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from engine.config.rollout import ExtraRuns, GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.errors import SandboxError
from engine.grading.counterfactual.base import (
    Reference,
    ReferenceStore,
    Variant,
    variant_files,
    variant_row,
)
from engine.grading.counterfactual.conclusions import contradiction, decides
from engine.grading.counterfactual.prover import Prover
from engine.grading.counterfactual.references import References
from engine.grading.counterfactual.runs import Execute, Screening, confirm, draw_runs, screen
from engine.grading.excuses import excused, without_excuses
from engine.grading.execution import NO_OVERLAY, RunExecutor, RunResult
from engine.grading.gradable import check_gradable
from engine.grading.grades import confirmed_grade, grade_of, noted, screened_grade
from engine.grading.own_box import OwnBoxGrading
from engine.grading.rules.reward_file import VERIFIER_FAILED
from engine.patches.sections import patch_hash
from engine.sandbox.base import SandboxBackend
from engine.types import CounterfactualOutcome, Grade, TaskRow, Verdict

_FROM_PATCH = "graded from the patch in a fresh sandbox, without what else the agent left in its own"
_OF_THE_MACHINE = frozenset({Verdict.INFRA_ERROR, Verdict.TEST_TIMEOUT})
"""Verdicts that say as much about the machine as about the patch: not kept for identical patches."""


@dataclass(frozen=True, slots=True)
class _Job:
    """One patch to grade, and how."""

    row: TaskRow
    patch: str
    timeout_s: float
    extra: ExtraRuns | None
    """Runs beside the true one; None for a trusted patch."""
    checked: bool
    """Whether it has such runs, as far as the row has a reference."""
    exact: bool
    """Whether the outcome of every test is wanted of patches that fail, too."""
    times: list[float] = field(default_factory=list)
    """Times of the start and of each end of a run."""


@dataclass(frozen=True, slots=True)
class _Passed:
    """A patch that passed the true tests, or would have without signs that gold patches may give."""

    job: _Job
    first: RunResult
    """The run of the true tests."""
    grade: Grade
    """Grade of that run."""
    screening: Screening | None
    """Runs that were made before it; None where the row had no reference yet."""

    @property
    def needs_reference(self) -> bool:
        """Return whether the reference of the row decides anything."""
        return self.job.checked or bool(self.first.signs) or bool(excused(self.grade.tests))

    async def cleared(self, signs: Collection[str]) -> _Passed:
        """Return the submission judged without signs of tampering that the gold patch gives, too."""
        first = self.first.cleared(signs)
        return replace(self, first=first, grade=await grade_of(first))


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
                all): a run of the true tests decides.

        Raises:
            DatasetError: the task's answer cannot be graded (no tests, unknown rule or parser).
        """
        await asyncio.to_thread(check_gradable, row)  # a parser's package may have thousands of modules
        settings = self._config.counterfactual
        extra = None if trusted else settings.evaluation if evaluation else settings.training
        timeout_s = self.timeout_s(row, evaluation=evaluation)
        job = _Job(row, patch, timeout_s, extra, checked=self._is_checked(), exact=evaluation)
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
            grade = _timed(await self._decide(job), job)
            return noted(grade, _FROM_PATCH) if job.row.answer.own_box else grade
        except SandboxError as error:
            return _lost(error)

    async def _decide(self, job: _Job) -> Grade:
        """Return the grade of a patch. Raises SandboxError where infrastructure failed in every attempt."""
        async with self._gradings:
            job.times.append(time.monotonic())
            known = await self._references.known(job.row) if job.extra is not None else None
            screening = await self._screened(job, known)
            if known is not None and screening is not None and self._fails(job, known, screening):
                return await screened_grade(screening.made)
            first = await self._plain(job, known)
            passed = _Passed(job, first, await grade_of(first), screening)
            if job.extra is None or (first.score <= 0 and not _is_doubtful(first, known)):
                return _compared(passed)
            if known is not None or not passed.needs_reference:
                return await self._concluded(passed, known)
        # A proof takes longer than a grading, and has a limit of its own.
        began = time.monotonic()
        reference = await self._references.get(job.row)
        waited = time.monotonic() - began
        job.times[:] = [moment + waited for moment in job.times]  # a proof is no part of a grading
        async with self._gradings:
            return await self._concluded(passed, reference)

    def _is_checked(self) -> bool:
        """Draw whether a submission is checked."""
        settings = self._config.counterfactual
        rate = 0.0 if settings.mode == "off" else settings.sample_rate
        return rate is None or secrets.SystemRandom().random() < rate

    async def _screened(self, job: _Job, known: Reference | None) -> Screening | None:
        """Make the runs before that of the true tests; None without a reference or a check."""
        if job.extra is None or not job.checked or known is None or not known.variants:
            return None
        return await screen(known, draw_runs(job.extra, known), self._executing(job))

    def _fails(self, job: _Job, known: Reference, screening: Screening) -> bool:
        """Return whether the run that ended a screening decides, whatever the true tests say."""
        last, rule = screening.made[-1], job.row.answer.grade_rule
        return not screening.solved and decides(known, last, rule, exact=job.exact)

    async def _plain(self, job: _Job, known: Reference | None) -> RunResult:
        """Run the true tests as their author wrote them."""
        looked_at = known is not None and self._config.counterfactual.mode != "off"
        first = await self._run(job, known.files if known is not None and looked_at else NO_OVERLAY)
        if job.extra is None:  # nobody tampered with it, whatever it looks like
            return first.cleared(first.signs)
        return first.cleared(known.signs) if known is not None else first

    def _executing(self, job: _Job) -> Execute:
        async def execute(reference: Reference, variant: Variant | None) -> RunResult:
            shown = replace(job, row=variant_row(job.row, variant))
            return (await self._run(shown, variant_files(reference, variant))).cleared(reference.signs)

        return execute

    async def _concluded(self, passed: _Passed, reference: Reference | None) -> Grade:
        """Return the grade of a patch that passed the true tests, or may have."""
        if passed.first.signs:
            unknown = (VERIFIER_FAILED, *passed.first.evidence.data_signs)
            passed = await passed.cleared(reference.signs if reference is not None else unknown)
        if passed.first.score <= 0:
            return _compared(passed)
        grade = without_excuses(passed.grade, reference)
        if grade.reward:
            return await self._confirmed(passed, grade, reference)
        return grade

    async def _confirmed(self, passed: _Passed, grade: Grade, reference: Reference | None) -> Grade:
        """Return the grade after all runs."""
        job = passed.job
        if job.extra is None or not job.checked:
            return replace(grade, counterfactual=self._unchosen())
        if reference is None or not reference.variants:
            return self._unchecked(job.row, grade, reference)
        screening = passed.screening
        if screening is None:
            screening = Screening(made=(), left=tuple(draw_runs(job.extra, reference)), solved=False)
        left = (*screening.left, *[None] * (job.extra.true_runs - 1))
        found = await confirm(passed.first, reference, screening.made, left, self._executing(job))
        return await confirmed_grade(grade, found)

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
            run = await self._runs.execute(job.row, job.patch, timeout_s=job.timeout_s, overlay=overlay)
        job.times.append(time.monotonic())
        return run


def _is_doubtful(first: RunResult, known: Reference | None) -> bool:
    """Return whether a run only looks tampered with as long as nothing is known of the gold patch's."""
    return known is None and first.verdict is not first.cleared(first.signs).verdict


def _lost(error: SandboxError) -> Grade:
    detail = f"the grading sandbox failed: {str(error) or type(error).__name__}"
    return Grade(verdict=Verdict.INFRA_ERROR, reward=None, detail=detail)


def _compared(passed: _Passed) -> Grade:
    """Return the grade of a patch that failed the true tests: flaky if it passed one of them before."""
    grade, screening = passed.grade, passed.screening
    if screening is None or not screening.solved or grade.verdict is not Verdict.FAILED:
        return grade
    if problem := contradiction(screening.made, passed.first):
        return noted(replace(grade, counterfactual=CounterfactualOutcome.FLAKY), f"flaky: {problem}")
    return grade


def _timed(grade: Grade, job: _Job) -> Grade:
    """Return a grade with its number of runs, and the time that all but the first took."""
    now, (start, first) = time.monotonic(), job.times[:2]
    runs = len(job.times) - 2
    extra_s = now - first if runs or grade.counterfactual else 0.0
    return replace(grade, seconds=now - start, extra_runs=runs, extra_seconds=extra_s)
