"""Grader of patches: only hidden tests in a fresh sandbox decide, never the agent's sandbox.

    run of the tests ── signs, skips ── passed, audited ── mutated runs ──▶ verdict
           └── failed ─────────────────────────────────────────────────────▶ verdict

An infrastructure failure is never a reward of 0: the run is retried in a fresh sandbox, then the
verdict is ``infra_error`` and the reward None. To add a grade rule: see ``engine.grading.rules``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.health import row_content
from engine.errors import SandboxError
from engine.grading.counterfactual.audit import Audits, OnCaught, find_tampering_in
from engine.grading.counterfactual.base import Reference, ReferenceStore, variant_files, variant_row
from engine.grading.counterfactual.prover import Prover
from engine.grading.counterfactual.references import References
from engine.grading.excuses import excused, fail_unproven_skips
from engine.grading.execution import NO_OVERLAY, RunExecutor, RunResult
from engine.grading.gradable import check_gradable
from engine.grading.grades import caught_grade, grade_of, with_notes
from engine.grading.own_box import OwnBoxGrading
from engine.grading.rules.reward_file import VERIFIER_FAILED
from engine.patches.sections import patch_hash
from engine.sandbox.base import SandboxBackend
from engine.types import CounterfactualOutcome, Grade, TaskRow, Verdict

GRADER_VERSION = 3
"""Increase it when the verdict of the same task, patch and settings may change: stored verdicts of other
versions are not reused."""
_FROM_PATCH = "graded from the patch in a fresh sandbox; other changes in the agent's sandbox were ignored"
_UNPROVEN = "not audited: the proof of the mutated tests failed, see the task's health"
_UNRECORDED = "the test runner was not recorded: its output or exit code alone decided"
_OF_THE_MACHINE = frozenset({Verdict.INFRA_ERROR, Verdict.TEST_TIMEOUT})
"""Verdicts that depend on the machine as much as on the patch: not reused for identical patches."""


@dataclass(frozen=True, slots=True)
class _Job:
    """One patch to grade, with its options."""

    row: TaskRow
    content: str
    """Hash of the row's content: an edited row keeps its id."""
    patch: str
    timeout_s: float
    evaluation: bool
    trusted: bool
    seconds: list[float] = field(default_factory=list)
    """Durations of the runs that were made."""


class Grader:
    """Grader of patches, at most ``config.max_parallel`` at once.

    Args:
        backend: the sandboxes in which tests run.
        config: time limits, parallelism, re-use of verdicts, audits.
        sandbox: limits of the grading sandboxes.
        run_id: the run that owns the sandboxes.
        store: store of references, including those created at first use; None keeps them in memory.
        on_caught: called once for each task in which an audit caught tampering.
    """

    def __init__(
        self,
        *,
        backend: SandboxBackend,
        config: GradingConfig,
        sandbox: SandboxConfig,
        run_id: str,
        store: ReferenceStore | None = None,
        on_caught: OnCaught | None = None,
    ) -> None:
        self._config = config
        self._runs = RunExecutor(backend=backend, config=config, sandbox=sandbox, run_id=run_id)
        self._gradings = asyncio.Semaphore(config.max_parallel)
        self._verdicts: dict[tuple[object, ...], asyncio.Future[Grade]] = {}
        self._audits = Audits(config.counterfactual, run_id=run_id, store=store, on_caught=on_caught)
        self._references = References(
            store=store,
            prove=Prover(backend=backend, config=config, sandbox=sandbox, run_id=run_id),
            max_proofs=max(1, config.max_parallel // 2),
        )

    async def grade(
        self, row: TaskRow, patch: str, *, evaluation: bool = False, trusted: bool = False
    ) -> Grade:
        """Grade a patch.

        On a task proven deterministic, the verdict of an identical patch is reused, even while that
        patch is still being graded. Infrastructure failures are never reused.

        Args:
            row: the task.
            patch: git-format, relative to the tree that agents start with.
            evaluation: whether the time limit and the audits of evaluations apply.
            trusted: whether the patch comes from no agent (the row's own solution, no change at all): it is
                not audited.

        Raises:
            DatasetError: the task's answer cannot be graded (no tests, unknown rule or parser).
        """
        await asyncio.to_thread(check_gradable, row)  # a parser's package may have thousands of modules
        timeout_s = self.timeout_s(row, evaluation=evaluation)
        content = await asyncio.to_thread(row_content, row)
        job = _Job(row, content, patch, timeout_s, evaluation=evaluation, trusted=trusted)
        if not (self._config.reuse_verdicts and row.answer.deterministic):
            return await self._graded(job)
        key = (content, patch_hash(patch), timeout_s, trusted, await self._draws(job))
        while (known := self._verdicts.get(key)) is not None:
            # Shielded: this waiter may be cancelled while others still wait for the verdict.
            grade = await asyncio.shield(known)
            if grade.verdict is not Verdict.INFRA_ERROR:
                return replace(grade, reused=True, seconds=0.0, extra_runs=0, extra_seconds=0.0)
        return await self._grade_once(key, job)

    def own_box(self, row: TaskRow, *, evaluation: bool = False) -> OwnBoxGrading | None:
        """Return the grading of one rollout in its agent's sandbox; None if patches are graded.

        It does not count towards ``config.max_parallel``: its sandbox is already open, and gradings that
        wait for a sandbox could wait for this one forever.

        Raises:
            DatasetError: the task's answer cannot be graded.
        """
        if not (row.answer.own_box and self._config.own_box):
            return None
        check_gradable(row)
        off = self._config.counterfactual == "off"
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
            grade = await self._graded(job)
        finally:
            if grade.verdict in _OF_THE_MACHINE:
                del self._verdicts[key]
            # Verdicts are kept for the whole run; a whole log is megabytes.
            future.set_result(replace(grade, whole_log=b""))
        return grade

    async def _graded(self, job: _Job) -> Grade:
        try:
            grade = await self._decided(job)
        except SandboxError as error:
            return _lost(error)
        grade = replace(
            grade,
            seconds=sum(job.seconds),
            extra_runs=len(job.seconds) - 1,
            extra_seconds=sum(job.seconds[1:]),
        )
        return with_notes(grade, _FROM_PATCH) if job.row.answer.own_box else grade

    async def _decided(self, job: _Job) -> Grade:
        """Run, check and audit a patch, and return its grade.

        Raises:
            SandboxError: infrastructure failed in every attempt.
        """
        run = await self._run(job)
        without_signs = run.cleared(run.signs)
        if job.trusted:  # no agent could tamper with it: its signs are harmless
            return await grade_of(without_signs)
        if without_signs.score <= 0 and run.verdict is without_signs.verdict:
            return await grade_of(run)

        # The gold patch may show the same signs and skips; proofs have their own concurrency limit.
        draws = await self._draws(job)
        reference = None
        if draws or run.signs or excused(run.judgement.tests):
            reference = await self._references.get(job.row, job.content)
        # These signs count only if runs of the gold patch were checked for them.
        unproven = (VERIFIER_FAILED, *run.evidence.data_signs)
        run = run.cleared(unproven if reference is None else reference.signs)
        grade = fail_unproven_skips(await grade_of(run), reference)
        if not grade.reward:
            return grade
        if run.evidence.signed is None and not run.evidence.record_wanted:
            grade = with_notes(grade, _UNRECORDED)

        if not draws or reference is None or not reference.variants:
            return self._not_audited(job, grade, draws, reference)
        for variant in self._audits.select_variants(job.row, job.patch, reference, draws):
            mutated_job = replace(job, row=variant_row(job.row, variant))
            mutated = await self._run(mutated_job, variant_files(reference, variant))
            mutated = mutated.cleared(reference.signs)
            if (caught := find_tampering_in(run, variant, mutated)) is not None:
                await self._audits.catch(job.row, caught.detail)
                return await caught_grade(grade, mutated, caught)
        return replace(grade, counterfactual=CounterfactualOutcome.CONFIRMED)

    async def _draws(self, job: _Job) -> int:
        """Return the number of mutated runs of a submission that passes."""
        if job.trusted:
            return 0
        return await self._audits.draws(job.row, job.patch, evaluation=job.evaluation)

    def _not_audited(self, job: _Job, grade: Grade, draws: int, reference: Reference | None) -> Grade:
        """Return the grade of a submission that passed without mutated runs, with the reason."""
        if self._config.counterfactual == "off":
            return replace(grade, counterfactual=CounterfactualOutcome.OFF)
        if not draws:
            return replace(grade, counterfactual=CounterfactualOutcome.NOT_SAMPLED)
        if reference is None and self._references.problem(job.content):
            return with_notes(replace(grade, counterfactual=CounterfactualOutcome.UNPROVEN), _UNPROVEN)
        return replace(grade, counterfactual=CounterfactualOutcome.NO_MUTANTS)

    async def _run(self, job: _Job, overlay: Mapping[str, bytes] = NO_OVERLAY) -> RunResult:
        async with self._gradings:
            began = time.monotonic()
            run = await self._runs.execute(job.row, job.patch, timeout_s=job.timeout_s, overlay=overlay)
            job.seconds.append(time.monotonic() - began)
        return run


def _lost(error: SandboxError) -> Grade:
    detail = f"the grading sandbox failed: {str(error) or type(error).__name__}"
    return Grade(verdict=Verdict.INFRA_ERROR, reward=None, detail=detail)
