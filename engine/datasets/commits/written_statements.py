"""Statements of commits: written by a model from change, failing tests and their output, else the template.

A written statement passes the checks of form and leaks that no model makes; a judge, where there is one,
reads written statements and templates alike. What the writer gave in vain is recorded.
"""

from __future__ import annotations

import builtins
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from engine.datasets.cached_model import CachedModel, NoAnswerError, Prompt, cap_bytes
from engine.datasets.commits.filters import Candidate
from engine.datasets.commits.statement_judge import Judgement, judge_statement
from engine.datasets.commits.statements import (
    Statement,
    failing_tests,
    find_leaks,
    test_names,
    write_statement,
)
from engine.datasets.commits.trials import Trial
from engine.threads import in_thread
from engine.types import TaskRow

WRITTEN = "written"
_MIN_CHARS, _MAX_CHARS = 80, 6000
"""Length of a written statement, characters."""
_BUILTINS = frozenset(dir(builtins))
_ISSUE = re.compile(r"\[ISSUE\](.*?)(?:\[/ISSUE\]|\Z)", re.DOTALL)
_OF_THE_FIX = re.compile(
    r"^diff --git |^@@ |^index [0-9a-f]{7}|\b(?:this|the) (?:commit|patch|diff|pull request|hidden tests?)\b",
    re.MULTILINE | re.IGNORECASE,
)
_MAX_DETAIL, _MAX_LEAKS = 500, 3
"""Length of a recorded reason, characters, and number of leaks in it."""
_SHARES = (0.45, 0.3, 0.15)
"""Shares of a prompt for the change, the failing tests and their output."""
_EXAMPLE = """render() drops the last line of a text without a final newline

If a template does not end with a newline, its last line is missing:

    >>> Template("a\\nb").render()
    'a\\n'

I expected `'a\\nb'`. With a newline at the end of the template the result is right."""
_RULES = f"""You write issues for the bug trackers of software projects, as their users do.
You see a change of the code, tests that failed before it, and their output. Write the issue that a user, who
has seen neither, would have opened before the change.

Rules:
1. The first line is a short title; an empty line and the description follow.
2. Describe the behaviour that a user observes and the behaviour that is expected.
3. State every value, name, signature and message that the tests rely on and that a developer cannot guess.
4. Show a short example of your own that reproduces the problem, with its wrong and its expected result.
5. Never describe the cause or the solution, and never copy code of the change.
6. Never mention tests, a commit, a patch or a pull request.
7. Write plain English in the style of real issues: concise, concrete, without headings of a template.

Answer with the issue alone, between [ISSUE] and [/ISSUE]. An example of another project:

[ISSUE]
{_EXAMPLE}
[/ISSUE]"""
_REQUEST = "Write the issue of this change now: [ISSUE], a title, an empty line, the description, [/ISSUE]."


class NoStatementError(Exception):
    """A commit has no statement.

    Args:
        reason: its reason in the funnel: ``statement``, ``leaks`` or ``unclear``.
        detail: what was found.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rejected:
    """An attempt of the writer that gave no statement."""

    reason: str
    """``no_answer``, ``form``, ``leaks`` or ``unclear``."""
    detail: str

    def record(self) -> dict[str, str]:
        return {"result": self.reason, "detail": self.detail[:_MAX_DETAIL]}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """Subject of a statement: a commit, its trial and failing tests."""

    candidate: Candidate
    trial: Trial
    tests: str
    """Code of failing tests."""
    seed: int


async def find_statement(
    candidate: Candidate,
    trial: Trial,
    *,
    writer: CachedModel | None,
    judge: CachedModel | None,
    seed: int,
) -> Statement:
    """Return the first statement that passes all checks: the writer's attempts, then the template.

    Raises:
        NoStatementError: none does.
        RunEndingError: a model answers no question any more.
    """
    tests = await in_thread(partial(failing_tests, candidate, trial))
    subject = _Subject(candidate=candidate, trial=trial, tests=tests, seed=seed)
    rejected: list[_Rejected] = []
    if writer is not None and (written := await _written(subject, writer, judge, rejected)) is not None:
        return written
    template = await in_thread(partial(write_statement, candidate, trial))
    if template is None:
        raise NoStatementError("statement", "; ".join(item.detail for item in rejected))
    judgement, problem = await _judged(subject, judge, template.text)
    if problem is not None:
        raise NoStatementError(problem.reason, problem.detail)
    return _recorded(template, rejected, judgement)


async def _written(
    subject: _Subject, writer: CachedModel, judge: CachedModel | None, rejected: list[_Rejected]
) -> Statement | None:
    """Return the first statement of the writer that passes all checks; add the others to ``rejected``."""
    for attempt in range(writer.limits.attempts):
        text, problem = await _write(subject, writer, rejected, attempt)
        judgement: Judgement | None = None
        if problem is None:
            judgement, problem = await _judged(subject, judge, text)
        if problem is None:
            statement = Statement(text=text, method=WRITTEN)
            return _recorded(statement, rejected, judgement, model=writer.name)
        rejected.append(problem)
    return None


async def _write(
    subject: _Subject, writer: CachedModel, rejected: Sequence[_Rejected], attempt: int
) -> tuple[str, _Rejected | None]:
    """Return the text of one attempt, or the reason why it is no statement."""
    try:
        answer = await writer.ask(partial(_prompt, subject, rejected), seed=subject.seed + attempt)
    except NoAnswerError as error:
        return "", _Rejected(reason="no_answer", detail=str(error))
    issue = _ISSUE.search(answer)
    text = issue[1].strip() if issue else ""
    candidate = subject.candidate
    problem = _form_problem(text)
    if not problem and _names(candidate, subject.tests).isdisjoint(re.findall(r"\w+", text)):
        problem = "it names neither what changed nor what the tests call"
    if problem:
        return "", _Rejected(reason="form", detail=problem)
    leaks = find_leaks(
        text,
        gold_patch=candidate.gold_patch,
        names=test_names(candidate, subject.trial),
        subject=candidate.commit.subject,
    )
    if leaks:
        return "", _Rejected(reason="leaks", detail="; ".join(leaks[:_MAX_LEAKS]))
    return text, None


async def _judged(
    subject: _Subject, judge: CachedModel | None, text: str
) -> tuple[Judgement | None, _Rejected | None]:
    """Return the judgement of a statement, and the reason to reject it; None without a judge or a reason."""
    if judge is None:
        return None, None
    judgement = await judge_statement(
        judge, text, change=subject.candidate.gold_patch, tests=subject.tests, seed=subject.seed
    )
    if judgement.leaks:
        return judgement, _Rejected(reason="leaks", detail=judgement.leaks_reason)
    if not judgement.specified:
        return judgement, _Rejected(reason="unclear", detail=judgement.specified_reason)
    return judgement, None


def _prompt(subject: _Subject, rejected: Sequence[_Rejected], size: int) -> Prompt:
    texts = (subject.candidate.gold_patch, subject.tests, "\n".join(subject.trial.messages))
    change, tests, output = (
        cap_bytes(text, share * max(size - len(_RULES), 0))
        for text, share in zip(texts, _SHARES, strict=True)
    )
    parts = [
        f"The change:\n\n{change}",
        f"Tests that failed before it:\n\n{tests}",
        f"Their output:\n\n{output}",
    ]
    if rejected:
        last = rejected[-1]
        parts.append(f"Your last answer was rejected ({last.reason}): {last.detail[:_MAX_DETAIL]}")
    parts.append(_REQUEST)
    return [{"role": "system", "content": _RULES}, {"role": "user", "content": "\n\n".join(parts)}]


def _form_problem(text: str) -> str:
    """Return why a text has not the form of an issue; empty if it has."""
    if not text:
        return "there is no [ISSUE]…[/ISSUE] with a text"
    if not _MIN_CHARS <= len(text) <= _MAX_CHARS:
        return f"{len(text)} characters: expected {_MIN_CHARS} to {_MAX_CHARS}"
    if sum(bool(line.strip()) for line in text.splitlines()) < 2:
        return "there is no description below the title"
    if not text.replace("\n", "").replace("\t", "").isprintable():
        return "there are control characters"
    if any(line in text for line in _EXAMPLE.splitlines() if line):
        return "it copies the example"
    if mention := _OF_THE_FIX.search(text):
        return f"it speaks of the fix: {mention[0]}"
    return ""


def _names(candidate: Candidate, tests: str) -> set[str]:
    """Return the names of changed modules and entities, and of what tests call."""
    entities = (
        name
        for change in candidate.entities.values()
        for name in (*change.added, *change.changed, *change.removed)
    )
    parts = {
        part
        for name in (*entities, *map(candidate.language.module_name, candidate.entities))
        for part in name.split(".")
    }
    return parts | set(re.findall(r"(\w+)\(", tests)) - _BUILTINS


def _recorded(
    statement: Statement, rejected: Sequence[_Rejected], judgement: Judgement | None, *, model: str = ""
) -> Statement:
    record: dict[str, Any] = {"method": statement.method, "leak_check": "passed"}
    if model:
        record["model"] = model
    if judgement is not None:
        record["judge"] = judgement.record()
    if rejected:
        record["rejected"] = [item.record() for item in rejected]
    return replace(statement, record=record)


def count_statements(rows: Iterable[TaskRow]) -> dict[str, int]:
    """Return how many statements were made in each way, and how many attempts of the writer were rejected."""
    counts: Counter[str] = Counter()
    for row in rows:
        record = row.answer.metadata["statement"]
        counts[record["method"]] += 1
        counts.update(f"rejected: {item['result']}" for item in record.get("rejected", ()))
        counts["without judgement"] += "problem" in record.get("judge", ())
    return dict(sorted((name, number) for name, number in counts.items() if number))
