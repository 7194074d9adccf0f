"""Conversion of grading runs to grades."""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import replace

from engine.grading.counterfactual.audit import CaughtTampering
from engine.grading.execution import RunResult
from engine.types import CounterfactualOutcome, FindingKind, Grade, TamperFinding, Verdict

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
    grade = with_notes(grade, run.detail, left_out, run.applied.how)
    return await asyncio.to_thread(_with_log, grade, run.evidence.log)


async def caught_grade(grade: Grade, mutated: RunResult, caught: CaughtTampering) -> Grade:
    """Return the grade of a submission that a mutated run caught, with the log of that run."""
    decided = await grade_of(mutated)
    findings = tuple(dict.fromkeys([*grade.findings, *decided.findings, *caught.findings]))
    tampered = replace(
        grade,
        verdict=Verdict.TAMPERED,
        reward=0.0,
        findings=findings,
        log=decided.log,
        whole_log=decided.whole_log,
        counterfactual=CounterfactualOutcome.CAUGHT,
    )
    return with_notes(tampered, caught.detail)


def with_notes(grade: Grade, *notes: str) -> Grade:
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
