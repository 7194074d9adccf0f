"""Check of one row: gradings without changes and with the gold patch, then the proof of its mutated tests.

no-op × k ─▶ gold × k ─▶ judge ─ valid ─▶ mutated tests ─▶ reference
                   │                 └─▶ wrong patches ─▶ test strength
                   └─ the last of them is the original run of the proof
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from engine.config.run import ValidateRun
from engine.datasets.health import HealthFinding, judge
from engine.datasets.replaced import RowIdentity
from engine.datasets.wrong_patches import ROLLOUT, WrongPatch
from engine.errors import DatasetError, HostileInputError, PatchError, SandboxError
from engine.events.health import MutantCoverage, RowStatus, TestStrength
from engine.grading.counterfactual.base import ReferenceStore
from engine.grading.counterfactual.proof import coverage_of
from engine.grading.counterfactual.prover import OriginalRun, Prover
from engine.grading.gradable import check_gradable
from engine.grading.grader import Grader
from engine.grading.grades import grade_of
from engine.grading.own_box import OwnBoxGrading
from engine.grading.retries import graded, retry_waits
from engine.grading.solution import gold_patch
from engine.grading.strength import choose_wrong_patches, measure_strength
from engine.sandbox.base import SandboxBackend
from engine.types import Grade, TaskRow, Verdict

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RowFinding:
    """Finding about one row, with the coverage of its tests by mutants and their strength where measured."""

    row: TaskRow
    health: HealthFinding
    coverage: MutantCoverage | None = None
    strength: TestStrength | None = None


class RowCheck:
    """Check of rows, which also stores the references of valid ones.

    Args:
        config: the validation's configuration.
        backend: the sandboxes in which tests run.
        references: store of the dataset.
        run_id: the run that owns the sandboxes.
        failed: patches of failed rollouts, for the test strength, by ``RowIdentity.start`` of their tasks.
    """

    def __init__(
        self,
        config: ValidateRun,
        *,
        backend: SandboxBackend,
        references: ReferenceStore,
        run_id: str,
        failed: Mapping[tuple[str, str], Sequence[str]] | None = None,
    ) -> None:
        self._config = config
        self._backend = backend
        self._references = references
        self._run_id = run_id
        self._failed = failed or {}
        settings = config.validation
        self._waits = retry_waits(settings.infra_retries, settings.retry_wait_s)
        """Waits before retries after infrastructure failures, seconds."""
        self._grader = Grader(backend=backend, config=config.grading, sandbox=config.sandbox, run_id=run_id)
        self._prover = Prover(backend=backend, config=config.grading, sandbox=config.sandbox, run_id=run_id)

    async def __call__(self, row: TaskRow) -> RowFinding:
        """Return the finding about a row."""
        obstacle = row.answer.metadata.get("ungradable")
        if obstacle:
            refused = [_refused(f"it cannot be graded: {obstacle}")]
            return RowFinding(row, judge(refused, refused))
        if (own_box := self._grader.own_box(row)) is not None:
            return await self._check_own_box(row, own_box)
        repeats = self._config.validation.repeats
        noop = await self._repeat(self._patch_grading(row, ""), repeats)
        if all(grade.verdict is Verdict.INFRA_ERROR for grade in noop):
            return RowFinding(row, judge(noop, ()))
        try:
            patch = await self._patiently(lambda: self._gold_patch(row))
            gold = await self._repeat(self._patch_grading(row, patch), repeats - 1)
            original = None
            if not (gold and _is_last(gold[-1])):
                last, original = await self._last(row, patch)
                gold.append(last)
            health = judge(noop, gold)
        except DatasetError as error:
            return RowFinding(row, judge(noop, [_refused(str(error))]))
        except SandboxError as error:
            lost = Grade(verdict=Verdict.INFRA_ERROR, reward=None, detail=f"the solution: {error}")
            return RowFinding(row, judge(noop, [lost]))
        if health.status is not RowStatus.VALID:
            return RowFinding(row, health)
        coverage = await self._prove(row, patch, original) if original is not None else None
        return RowFinding(row, health, coverage, await self._measure_strength(row, patch, gold))

    async def _check_own_box(self, row: TaskRow, own_box: OwnBoxGrading) -> RowFinding:
        """Return the finding about a row that is graded in the agent's sandbox; it has no mutated tests."""
        repeats = self._config.validation.repeats
        noop = await self._repeat(partial(self._grader.grade_solution, own_box, applied=False), repeats)
        if all(grade.verdict is Verdict.INFRA_ERROR for grade in noop):
            return RowFinding(row, judge(noop, ()))
        gold = await self._repeat(partial(self._grader.grade_solution, own_box, applied=True), repeats)
        return RowFinding(row, judge(noop, gold))

    async def _last(self, row: TaskRow, patch: str) -> tuple[Grade, OriginalRun | None]:
        """Grade the gold patch by the proof's original run; return the run too where it can be used."""
        try:
            await asyncio.to_thread(check_gradable, row)
            began = time.monotonic()
            original = await self._patiently(lambda: self._prover.original_run(row, patch))
        except DatasetError as error:
            return _refused(f"it cannot be graded: {error}"), None
        except SandboxError as error:
            lost = f"the grading sandbox failed: {error}"
            return Grade(verdict=Verdict.INFRA_ERROR, reward=None, detail=lost), None
        if original.result.verdict is not Verdict.PASSED and original.shortened:
            [last] = await self._repeat(self._patch_grading(row, patch), 1)
            return last, None
        return replace(await grade_of(original.result), seconds=time.monotonic() - began), original

    async def _prove(self, row: TaskRow, patch: str, original: OriginalRun) -> MutantCoverage | None:
        """Make and store the reference of a valid row; None where infrastructure or the proof failed."""
        try:
            reference = await self._patiently(lambda: self._prover.prove(row, patch, original))
        except (DatasetError, SandboxError):
            return None
        await self._references.save(row, reference)
        return coverage_of(reference)

    async def _measure_strength(
        self, row: TaskRow, solution: str, gold: Sequence[Grade]
    ) -> TestStrength | None:
        """Grade wrong patches of a valid row; None where none are wanted, or none can be made."""
        limit = self._config.validation.wrong_patches
        if not limit:
            return None
        choose = partial(
            choose_wrong_patches,
            row,
            solution,
            self._failed.get(RowIdentity.of(row).start, ()),
            limit=limit,
            backend=self._backend,
            sandbox=self._config.sandbox,
            run_id=self._run_id,
        )
        try:
            patches = await self._patiently(choose)
        except (HostileInputError, PatchError, SandboxError):
            return None
        return await measure_strength(
            row,
            patches,
            self._grade_wrong,
            solution_s=max(grade.seconds for grade in gold),
            timeout_s=self._grader.timeout_s(row),
        )

    async def _grade_wrong(self, row: TaskRow, wrong: WrongPatch) -> Grade:
        trusted = wrong.kind != ROLLOUT  # an agent's patch may tamper with the tests
        return await graded(partial(self._grader.grade, row, wrong.patch, trusted=trusted), self._waits)

    async def _gold_patch(self, row: TaskRow) -> str:
        return await gold_patch(
            row,
            backend=self._backend,
            sandbox=self._config.sandbox,
            run_id=self._run_id,
            timeout_s=row.answer.timeout_s or self._config.grading.timeout_s,
        )

    def _patch_grading(self, row: TaskRow, patch: str) -> Callable[[], Awaitable[Grade]]:
        return partial(self._grader.grade, row, patch, trusted=True)

    async def _repeat(self, grade: Callable[[], Awaitable[Grade]], times: int) -> list[Grade]:
        grades: list[Grade] = []
        for _ in range(times):
            try:
                grades.append(await graded(grade, self._waits))
            except DatasetError as error:
                return [*grades, _refused(f"it cannot be graded: {error}")]
            if _is_last(grades[-1]):
                break
        return grades

    async def _patiently(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Return the result of an attempt; one lost to infrastructure is repeated after a wait."""
        for wait_s in self._waits:
            with suppress(SandboxError):
                return await attempt()
            await asyncio.sleep(wait_s)
        return await attempt()


def _is_last(grade: Grade) -> bool:
    """Return whether repeating is useless: retries are exhausted, or the patch does not apply."""
    return grade.verdict in (Verdict.INFRA_ERROR, Verdict.PATCH_FAILED)


def _refused(reason: str) -> Grade:
    return Grade(verdict=Verdict.PATCH_FAILED, reward=0.0, detail=reason)
