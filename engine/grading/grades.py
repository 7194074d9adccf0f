"""Grades made of grading runs."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from dataclasses import replace

from engine.grading.counterfactual.conclusions import Confirmation, Made, true_results
from engine.grading.execution import RunResult
from engine.types import CounterfactualOutcome, FindingKind, Grade, TamperFinding, TestOutcome, Verdict

_LOG_CHARS = 20_000
_PACKED_BYTES = 4 << 20


async def grade_of(run: RunResult) -> Grade:
    """Return the grade of one run."""
    findings = run.applied.filtered.findings
    if run.verdict is Verdict.TAMPERED:
        findings += (TamperFinding(kind=FindingKind.FORGED_REPORT, detail=run.detail),)
    grade = Grade(verdict=run.verdict, reward=run.score, tests=run.judgement.tests, findings=findings)
    names = run.applied.filtered.left_out
    left_out = f"left out of the patch: {', '.join(names)}" if names else ""
    grade = noted(grade, run.detail, left_out, run.applied.how)
    return await asyncio.to_thread(_with_log, grade, run.evidence.log)


async def screened_grade(made: Sequence[Made]) -> Grade:
    """Return the grade of a patch whose last run decided before any run of the true tests."""
    last = made[-1].run
    tests, detail = true_results(made)
    if last.verdict is Verdict.FAILED and detail:
        last = replace(last, detail=detail)
    if variant := made[-1].variant:
        names = dict(variant.renamed)
        false = "".join(f"  {names.get(test, test)}\n" for test in variant.must_fail)
        heading = (
            f"[grading] Made false in this run, so that a solution fails them:\n{false}\n" if false else ""
        )
        last = replace(last, evidence=replace(last.evidence, log=heading + last.evidence.log))
    return replace(await grade_of(last), tests=tests)


async def confirmed_grade(grade: Grade, found: Confirmation) -> Grade:
    """Return the grade of a run of the true tests with the result of all, and the log of one that decided."""
    grade = replace(grade, counterfactual=found.outcome)
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


def noted(grade: Grade, *notes: str) -> Grade:
    """Return the grade with notes appended to its detail; empty ones are left out."""
    return replace(grade, detail="; ".join(note for note in (grade.detail, *notes) if note))


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
