"""Evidence in the log of a script: the output between its markers, and forged markers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.grading.evidence import Evidence
from engine.grading.logs import swebench
from engine.grading.running.nonces import Nonces
from engine.sandbox.base import ExecResult
from engine.testing.markers import END, START
from engine.testing.testrun import log_text

_CUT = "the log is too long: its middle was dropped, and the marker before the tests with it"


def read_log(result: ExecResult, nonces: Nonces, *, marked: bool) -> Evidence:
    """Return the evidence contained in the log alone.

    Args:
        marked: whether the script prints markers.
    """
    text = log_text(result)
    if not marked:
        log = published(text, result.exit_code)
        timed_out = "the tests hit their deadline" if result.timed_out else ""
        return Evidence(
            log=log,
            judged=log,
            shown=text,
            exit_code=result.exit_code,
            seconds=result.seconds,
            timed_out=result.timed_out,
            problem=timed_out,
        )
    starts = [match.span() for match in _lines(nonces.start, text)]
    ends = [
        (match.start(), match.end(), int(match[1])) for match in _lines(rf"{nonces.end} (\d{{1,9}})", text)
    ]
    once = len(starts) == 1 and len(ends) == 1 and starts[0][1] <= ends[0][0]
    before = text[: starts[0][0]] if once else ""
    shown = text[starts[0][1] : ends[0][0]] if once else ""
    after = text[ends[0][1] :] if once else ""
    code = ends[0][2] if once else None
    cut = not starts and len(ends) == 1 and result.dropped_bytes > 0
    return Evidence(
        log=published(shown, code, before, after) if once else _neutral(text),
        judged=published(shown, code) if once else "",
        shown=shown,
        exit_code=code,
        seconds=result.seconds,
        timed_out=result.timed_out,
        problem=_CUT if cut else _problem(result, len(starts), len(ends), once),
        forged=len(starts) > 1 or len(ends) > 1 or (len(ends) == 1 and not once and not cut),
    )


def _lines(pattern: str, text: str) -> Iterator[re.Match[str]]:
    """Yield the lines that match ``pattern``, with their ends; fast if it begins with a rare word."""
    for match in re.finditer(rf"{pattern}(?:\n|\Z)", text):
        if match.start() == 0 or text[match.start() - 1] == "\n":
            yield match


def _problem(result: ExecResult, starts: int, ends: int, once: bool) -> str:
    if result.timed_out:
        return "the tests hit their deadline"
    if once:
        return ""
    if starts > 1 or ends > 1 or (starts == 0 and ends == 1):
        return "the markers around the tests were forged"
    if starts == 0:
        return f"the script ended before its tests (exit code {result.exit_code})"
    return f"the script ended during its tests (exit code {result.exit_code})"


def published(shown: str, exit_code: int | None, before: str = "", after: str = "") -> str:
    """Return the log in the official format; constant markers printed by tests are neutralised."""
    code = "" if exit_code is None else f"{swebench.EXIT_CODE}: {exit_code}\n"
    body = shown if shown.endswith("\n") else f"{shown}\n"
    return f"{_neutral(before)}{START}\n{_neutral(body)}{END}\n{code}{_neutral(after)}"


def _neutral(text: str) -> str:
    for marker in (START, END, swebench.EXIT_CODE):
        text = text.replace(marker, marker.replace(">>>>>", "> > >"))
    return text
