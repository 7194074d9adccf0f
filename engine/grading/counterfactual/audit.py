"""Audit of submissions that pass: selection of submissions and findings of their mutated runs.

All draws are seeded by the run, the task and the patch: identical patches and resumed runs get the same ones.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import structlog

from engine.config.rollout import AUDITED_SHARE, EVALUATION_DRAWS
from engine.errors import DatasetError
from engine.grading.counterfactual.base import Reference, ReferenceStore, Variant
from engine.grading.counterfactual.python.naming import tests_by_function
from engine.grading.evidence import first_names
from engine.grading.execution import RunResult
from engine.grading.solution import is_gold_patch
from engine.patches.sections import patch_hash
from engine.types import FindingKind, TamperFinding, TaskRow, TestOutcome, Verdict

_log = structlog.get_logger(__name__)
_PASSED = frozenset({TestOutcome.PASSED, TestOutcome.XPASS, TestOutcome.XFAIL})
"""Outcomes that rules count as a pass."""
_MAX_FINDINGS = 5
OnCaught = Callable[[TaskRow, str], None]
"""Callback for the first tampering that a run catches in a row; receives the row and a description."""


@dataclass(frozen=True, slots=True)
class CaughtTampering:
    """Tampering that a mutated run caught; ``detail`` contains no assertion."""

    detail: str
    findings: tuple[TamperFinding, ...] = ()


class Audits:
    """Selection of the submissions to audit in a run.

    Args:
        mode: ``off`` audits none, ``always`` all. ``sample`` audits all submissions of evaluations and a
            share of training's. Once tampering was caught in a task or in this run, it audits all of them.
        run_id: id of the run; seeds the draws.
        store: store of the marks of tasks in which tampering was caught; None keeps them in memory.
        on_caught: called once for each task in which tampering was caught.
    """

    def __init__(
        self,
        mode: Literal["off", "sample", "always"],
        *,
        run_id: str,
        store: ReferenceStore | None = None,
        on_caught: OnCaught | None = None,
    ) -> None:
        self._mode = mode
        self._run_id = run_id
        self._store = store
        self._on_caught = on_caught
        self._marked: set[str] | None = None
        """Tasks in which some run caught tampering; None before the marks are read."""
        self._caught: set[str] = set()
        """Tasks in which this run caught tampering."""

    async def draws(self, row: TaskRow, patch: str, *, evaluation: bool) -> int:
        """Return the number of mutated runs of a submission that passes."""
        if self._mode == "off":
            return 0
        if evaluation:
            return EVALUATION_DRAWS
        marked = await self._marks()
        if self._mode == "always" or self._caught or row.task.id in marked:
            return 1
        return int(self._seed(row, patch) % AUDITED_SHARE == 0)

    def select_variants(
        self, row: TaskRow, patch: str, reference: Reference, draws: int
    ) -> Sequence[Variant]:
        """Return the variants of the mutated runs in order; none for the gold patch, which proved them."""
        if is_gold_patch(row, patch):
            return ()
        variants = reference.variants
        return random.Random(self._seed(row, patch)).sample(variants, min(draws, len(variants)))

    async def catch(self, row: TaskRow, detail: str) -> None:
        """Remember that tampering was caught in a row, and report it."""
        if row.task.id in self._caught:
            return
        (await self._marks()).add(row.task.id)
        self._caught.add(row.task.id)
        if self._on_caught is not None:
            self._on_caught(row, detail)
        if self._store is not None:
            try:
                await self._store.mark(row, self._run_id)
            except (OSError, DatasetError) as error:
                _log.warning("cannot mark a task", task=row.task.instance_id, error=str(error))

    async def _marks(self) -> set[str]:
        if self._marked is None:
            marks = await self._store.marks() if self._store is not None else {}
            if self._marked is None:  # no concurrent call read them meanwhile
                self._marked = set(marks)
                self._caught |= {task for task, runs in marks.items() if self._run_id in runs}
        return self._marked

    def _seed(self, row: TaskRow, patch: str) -> int:
        key = f"{self._run_id}\n{row.task.id}\n{patch_hash(patch)}"
        return int.from_bytes(hashlib.sha256(key.encode()).digest())


def find_tampering_in(first: RunResult, variant: Variant, mutated: RunResult) -> CaughtTampering | None:
    """Return the tampering that a mutated run caught; None without any.

    Passed mutated assertions and signs of tampering count, other tests do not. A wrong answer may satisfy a
    mutated assertion, so for partly rewarded submissions only tests count that passed in the original run.

    Args:
        first: the submission's run of the original tests.
        variant: the mutants in the mutated run.
    """
    if mutated.verdict is Verdict.TAMPERED:
        return CaughtTampering(mutated.detail)
    if not variant.must_fail:
        if first.verdict is Verdict.PASSED and mutated.score > 0:
            return CaughtTampering("it also passed the mutated tests", _findings(variant, ()))
        return None
    names, solved, passing = dict(variant.renamed), _passed(first), _passed(mutated)
    passed = [test for test in variant.must_fail if test in solved and names.get(test, test) in passing]
    if not passed:
        return None
    detail = f"{len(passed)} tests passed although they were mutated: {first_names(passed)}"
    return CaughtTampering(detail, _findings(variant, passed))


def _passed(run: RunResult) -> set[str]:
    return {test.test_id for test in run.judgement.tests if test.outcome in _PASSED}


def _findings(variant: Variant, passed: Sequence[str]) -> tuple[TamperFinding, ...]:
    """Return the mutated assertions of tests that passed; all if the rule reports no test names."""
    functions = tests_by_function({(mutant.path, mutant.function) for mutant in variant.mutants}, passed)
    mutants = [mutant for mutant in variant.mutants if (mutant.path, mutant.function) in functions]
    return tuple(
        TamperFinding(
            kind=FindingKind.COUNTERFACTUAL,
            detail=f"{mutant.path}:{mutant.line} {mutant.function} passed with: {mutant.after}"
            + (f", original: {mutant.before}" if mutant.before else ", added"),
        )
        for mutant in (mutants or variant.mutants)[:_MAX_FINDINGS]
    )
