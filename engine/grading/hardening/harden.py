"""Hardening of one task: additional tests that its solution passes and that a wrong patch fails.

    wrong patches that pass ─▶ observations that differ ─▶ one test each ─▶ solution × 5 ─▶ alternatives
        ─▶ untouched ─▶ chosen tests ─▶ solution and wrong patches ─▶ hardened task

Tests that fail once on the solution, or on an honest alternative, are left out one by one.
"""

from __future__ import annotations

import posixpath
import random
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.config.hardening import HardeningConfig
from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.wrong_patches import WrongPatch
from engine.errors import HostileInputError, PatchError, SandboxError
from engine.grading.execution import RunExecutor
from engine.grading.grader import Grader
from engine.grading.hardening.generated_tests import write_test_file
from engine.grading.hardening.inputs import Observation
from engine.grading.hardening.recording import Observed, observe, required_files
from engine.grading.hardening.trial import (
    Hardening,
    Trial,
    choose_candidates,
    choose_tests,
    hardened_row,
    preferences,
)
from engine.grading.retries import graded, retry_waits
from engine.grading.strength import choose_wrong_patches, files_before, limited_by_solution
from engine.patches.apply import apply_patch
from engine.patches.sections import is_same_change
from engine.sandbox.base import SandboxBackend
from engine.testing.toolchain import DRIVER
from engine.threads import in_thread
from engine.types import Grade, GradeRule, TaskRow, TestOutcome, Verdict

_GOLD_RUNS = 5
_MAX_TESTS = 120
"""Observations that are tried as tests."""
_MAX_ALTERNATIVES = 16
_MAX_DETAIL = 500
_WAITS = retry_waits(2, 2.0)
"""Waits before retries of a grading that infrastructure lost, seconds."""
_FAILURES = frozenset({TestOutcome.FAILED, TestOutcome.ERROR})


class _UnchangedError(Exception):
    """The task stays as it is.

    Attributes:
        reason: one of the reasons of ``engine.grading.hardening.dataset.STAGES``.
    """

    def __init__(self, reason: str, detail: str = "", known: Mapping[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.result = Hardening(reason=reason, detail=detail[:_MAX_DETAIL], **(known or {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Survivors:
    """Wrong patches that the task's tests let pass, and the number of all that were graded."""

    wrong: tuple[WrongPatch, ...]
    graded: int

    @property
    def patches(self) -> list[str]:
        return [each.patch for each in self.wrong]


class Hardener:
    """Hardens tasks whose tests are run by the driver.

    Args:
        config: numbers of wrong patches and tests, time limit.
        backend: the sandboxes in which tests run.
        sandbox: their limits.
        run_id: the run that owns them.
        seed: of the order of tests.
    """

    def __init__(
        self,
        config: HardeningConfig,
        *,
        backend: SandboxBackend,
        sandbox: SandboxConfig,
        run_id: str,
        seed: int = 0,
    ) -> None:
        self._config = config
        self._backend = backend
        self._sandbox = sandbox
        self._run_id = run_id
        self._seed = seed
        grading = GradingConfig(
            timeout_s=config.test_timeout_s, reuse_verdicts=False, max_parallel=config.workers
        )
        parts: dict[str, Any] = {
            "backend": backend, "config": grading, "sandbox": sandbox, "run_id": run_id,
        }  # fmt: skip
        self._grader = Grader(**parts)
        self._runs = RunExecutor(**parts)

    async def harden(self, row: TaskRow, alternatives: Sequence[str] = ()) -> Hardening:
        """Return the additional tests of a task, or the reason why it stays as it is.

        Args:
            row: the task.
            alternatives: patches of honest solutions; those that fail the task's own tests are ignored.

        Raises:
            SandboxError: infrastructure failed.
            DatasetError: the task cannot be graded.
        """
        try:
            return await self._hardened(row, alternatives)
        except _UnchangedError as unchanged:
            return unchanged.result

    async def _hardened(self, row: TaskRow, alternatives: Sequence[str]) -> Hardening:
        solution = row.answer.gold_patch
        if row.answer.grade_rule is not GradeRule.F2P_P2P or not _is_driven(row.answer.test_command):
            raise _UnchangedError("other_runner", "its tests are not run by the driver")
        if not solution.strip():
            raise _UnchangedError("no_solution")
        gold = await self._grade(row, solution)
        if gold.verdict is not Verdict.PASSED:
            raise _UnchangedError("gold_fails", gold.detail)
        row = limited_by_solution(row, gold.seconds, self._grader.timeout_s(row))
        survivors = await self._survivors(row, solution)
        known: dict[str, Any] = {
            "wrong_patches": survivors.graded,
            "rejected_before": survivors.graded - len(survivors.wrong),
            "rejected_after": survivors.graded - len(survivors.wrong),
            "passed": [each.detail[:_MAX_DETAIL] for each in survivors.wrong],
        }
        if not survivors.wrong:
            raise _UnchangedError("strong", known=known)
        observed = await self._observe(row, solution, survivors.patches, known)
        ranks = preferences(observed)
        candidates = choose_candidates(ranks, observed.differing, _MAX_TESTS)
        if not candidates:
            raise _UnchangedError("not_caught", f"{len(observed.observations)} results compared", known)
        path = await self._free_path(row)
        trial = Trial(row, path, candidates)
        known["tried"] = len(trial.observations)
        stable = await self._stable(trial, solution)
        known["failed_on_solution"] = len(trial.observations) - len(stable)
        if not stable:
            raise _UnchangedError("gold", known=known)
        trial = Trial(row, path, stable)
        trial, known["alternatives"] = await self._accepted(trial, solution, alternatives)
        known["failed_on_alternatives"] = len(stable) - len(trial.observations)
        if not trial.observations:
            raise _UnchangedError("alternatives", known=known)
        chosen = choose_tests(trial.observations, ranks, observed.differing, self._config.max_tests)
        final = Trial(row, path, chosen)
        untouched = await self._ends(final, "")
        result = Hardening(
            path=path,
            text=write_test_file(chosen),
            fail_to_pass=tuple(test for test in final.tests if untouched.get(test) in _FAILURES),
            pass_to_pass=tuple(test for test in final.tests if untouched.get(test) is TestOutcome.PASSED),
            **known,
        )
        return await self._confirmed(row, solution, survivors.patches, result)

    async def _grade(self, row: TaskRow, patch: str, *, trusted: bool = True) -> Grade:
        """Grade a patch, an agent's one as evaluations do.

        Raises:
            SandboxError: infrastructure failed in every attempt.
        """
        grade = await graded(
            lambda: self._grader.grade(row, patch, evaluation=not trusted, trusted=trusted), _WAITS
        )
        if grade.verdict is Verdict.INFRA_ERROR:
            raise SandboxError(grade.detail)
        return grade

    async def _survivors(self, row: TaskRow, solution: str) -> _Survivors:
        try:
            wrong = await choose_wrong_patches(
                row, solution, (), limit=self._config.wrong_patches, backend=self._backend,
                sandbox=self._sandbox, run_id=self._run_id,
            )  # fmt: skip
        except (HostileInputError, PatchError) as error:
            raise _UnchangedError("no_wrong_patches", str(error)) from None
        if not wrong:
            raise _UnchangedError("no_wrong_patches")
        verdicts = [(await self._grade(row, each.patch)).verdict for each in wrong]
        passed = [each for each, verdict in zip(wrong, verdicts, strict=True) if verdict is Verdict.PASSED]
        return _Survivors(wrong=tuple(passed), graded=len(wrong))

    async def _observe(
        self, row: TaskRow, solution: str, wrong: Sequence[str], known: Mapping[str, Any]
    ) -> Observed:
        before = await files_before(
            row, solution, backend=self._backend, sandbox=self._sandbox, run_id=self._run_id
        )
        solved, *others = await in_thread(
            lambda: [apply_patch(before, patch).applied_to(before) for patch in (solution, *wrong)]
        )
        timeout_s = self._grader.timeout_s(row)
        try:
            observed = await observe(row, solution, (before, solved), others, self._runs, timeout_s=timeout_s)
        except HostileInputError as error:
            raise _UnchangedError("nothing_recorded", str(error), known) from None
        if not observed.recorded:
            raise _UnchangedError("nothing_recorded", known=known)
        if not observed.observations:
            raise _UnchangedError("not_repeatable", known=known)
        return observed

    async def _free_path(self, row: TaskRow) -> str:
        """Return the path of a new file beside the first test file."""
        folder = posixpath.dirname(required_files(row)[0])
        async with self._runs.open(row, lifetime_s=self._config.test_timeout_s) as box:
            taken = {*row.answer.test_files, *row.answer.binary_files}
            for number in range(1, 100):
                path = posixpath.join(folder, f"test_hardened{number if number > 1 else ''}.py")
                if path not in taken and not await box.fetch_files([path]):
                    return path
        raise _UnchangedError("error", "no name is free for a test file")

    async def _stable(self, trial: Trial, solution: str) -> list[Observation]:
        """Return the observations whose tests pass with the solution in every order."""
        order = random.Random(f"{self._seed} {trial.row.task.id}")
        stable = {*trial.tests}
        for _ in range(_GOLD_RUNS):
            stable &= await self._passed(trial, solution, order.sample(trial.tests, len(trial.tests)))
        return trial.only(stable)

    async def _accepted(self, trial: Trial, solution: str, alternatives: Iterable[str]) -> tuple[Trial, int]:
        """Return the trial without tests that an honest alternative fails, and the number of alternatives."""
        accepted = 0
        distinct = [patch for patch in dict.fromkeys(alternatives) if not is_same_change(patch, solution)]
        for patch in distinct[:_MAX_ALTERNATIVES]:
            if not trial.observations:
                break
            if (await self._grade(trial.row, patch, trusted=False)).verdict is not Verdict.PASSED:
                continue
            accepted += 1
            trial = Trial(trial.row, trial.path, trial.only(await self._passed(trial, patch)))
        return trial, accepted

    async def _passed(self, trial: Trial, patch: str, order: Sequence[str] = ()) -> set[str]:
        """Return the trial's tests that pass with a patch."""
        ends = await self._ends(trial, patch, order)
        return {test for test, end in ends.items() if end is TestOutcome.PASSED}

    async def _ends(self, trial: Trial, patch: str, order: Sequence[str] = ()) -> dict[str, TestOutcome]:
        """Return the outcomes of the trial's tests with a patch."""
        grade = await self._grade(trial.candidate(order), patch)
        ends = {result.test_id: result.outcome for result in grade.tests}
        return {test: ends[test] for test in trial.tests if test in ends}

    async def _confirmed(
        self, row: TaskRow, solution: str, survivors: Sequence[str], result: Hardening
    ) -> Hardening:
        """Return the result with the wrong patches that the changed task rejects; its solution passes."""
        changed = hardened_row(row, result)
        grade = await self._grade(changed, solution)
        if grade.verdict is not Verdict.PASSED:
            raise _UnchangedError("not_confirmed", grade.detail)
        verdicts = [(await self._grade(changed, patch)).verdict for patch in survivors]
        rejected = sum(verdict is not Verdict.PASSED for verdict in verdicts)
        if not rejected:
            raise _UnchangedError("not_confirmed", "no wrong patch fails the chosen tests alone")
        return result.model_copy(update={"rejected_after": result.rejected_before + rejected})


def _is_driven(command: str) -> bool:
    """Return whether a command is one that the driver's caller writes."""
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    return words[:4] == ["python3", "-S", "-P", "-B"] and words[4:5] == [DRIVER] and "--" in words
