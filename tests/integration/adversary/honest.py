"""Honest work: what solves the task passes, what does not solve it fails, and neither is called tampered."""

from __future__ import annotations

from engine.types import Verdict
from tests.dataset_builders import NUMBERS, new_file, patched
from tests.integration.adversary.frame import PASSED, STILL_BROKEN, Layer, Submission

FAILED = frozenset({Verdict.FAILED})


def _right(name: str, before: str = "", after: str = "", files: str = "") -> Submission:
    """Return a submission that solves the task, with more code around it."""
    return Submission(
        name=name, patch=patched(before + NUMBERS + after) + files, layer=Layer.EVIDENCE, ends=PASSED
    )


def _wrong(name: str, content: str) -> Submission:
    return Submission(name=name, patch=patched(content), layer=Layer.EVIDENCE, ends=FAILED)


FAMILY = (
    _right("gold"),
    _right("gold with notes", files=new_file("notes.md", "what I did\n")),
    _wrong("a comment only", STILL_BROKEN + "# looked at it\n"),
    _wrong("a wrong bound", NUMBERS.replace("return high", "return high - 1")),
    _wrong("a syntax error", NUMBERS.replace("def clamp(", "def clamp((")),
    _wrong("an exception", NUMBERS.replace("return high", "raise ValueError(value)")),
)
