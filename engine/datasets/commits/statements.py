"""Problem statements of commits, written from failing tests without a model, and their check for leaks."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.datasets.commits.filters import Candidate
from engine.datasets.commits.trials import Trial, hidden_files
from engine.patches.sections import added_lines, removed_lines

_MAX_EXAMPLE_LINES, _MAX_EXAMPLE_CHARS = 40, 4_000
_MAX_EXAMPLES = 20
"""Number of failing tests that are read for an example, each in a process of its own."""
_MIN_LINE = 14
"""Length from which an added line that a statement contains is a leak, characters."""
_NGRAM = 8
"""Number of consecutive tokens of the added code from which a statement leaks it."""
_MAX_SHOWN_TESTS = 3
"""Number of failing tests whose code models read."""
_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A problem statement and how it was made."""

    text: str
    method: str
    """``template``, ``template without example`` or ``written`` (by a model)."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """How it was made and checked, for the row's metadata."""


def write_statement(candidate: Candidate, trial: Trial) -> Statement | None:
    """Return a statement without leaks; None if there is none."""
    names = test_names(candidate, trial)
    example = _example(candidate, trial)
    for shown, method in ((example, "template"), ("", "template without example")):
        if not shown and not any(_says_something(message) for message in trial.messages):
            return None
        text = _text(candidate, trial, shown)
        subject = candidate.commit.subject
        if not find_leaks(text, gold_patch=candidate.gold_patch, names=names, subject=subject):
            return Statement(text=text, method=method)
    return None


def find_leaks(text: str, *, gold_patch: str, names: Collection[str], subject: str) -> list[str]:
    """Return what a statement leaks: code of the fix, names of hidden tests, the commit's message."""
    flat = _flat(text)
    leaks = [
        f"hidden test {name}" for name in names if re.search(rf"(?<!\w){re.escape(_flat(name))}(?!\w)", flat)
    ]
    if len(subject) >= _MIN_LINE and _flat(subject) in flat:
        leaks.append("the commit's message")
    old = "\n".join(removed_lines(gold_patch))
    added = [line.strip() for line in added_lines(gold_patch) if line.strip() and line.strip() not in old]
    leaks += [f"line of the fix: {line}" for line in added if len(line) >= _MIN_LINE and line in text]
    new = (_ngrams("\n".join(added)) - _ngrams(old)) & _ngrams(text)
    leaks += [f"code of the fix: {' '.join(tokens)}" for tokens in sorted(new)]
    return leaks


def _flat(text: str) -> str:
    """Return a text in one case and on one line."""
    return " ".join(text.split()).casefold()


def test_names(candidate: Candidate, trial: Trial) -> set[str]:
    """Return the names by which a text reveals hidden tests."""
    tests = (*trial.fail_to_pass, *trial.pass_to_pass)
    return set().union(*map(candidate.language.test_names, tests))


def _ngrams(text: str) -> set[tuple[str, ...]]:
    tokens = _TOKEN.findall(text)
    return {tuple(tokens[i : i + _NGRAM]) for i in range(len(tokens) - _NGRAM + 1)}


def _text(candidate: Candidate, trial: Trial, example: str) -> str:
    modules = sorted({candidate.language.module_name(path) for path in candidate.entities})
    errors = list(dict.fromkeys(_error(message) for message in trial.messages))[:3]
    where = " and ".join(f"`{module}`" for module in modules[:3])
    symptom = _symptom(errors[0]) if errors else "wrong results"
    paragraphs = [
        f"{where}: {'unexpected ' if errors else ''}{symptom}",
        f"{where} does not behave as expected.",
    ]
    if example:
        paragraphs.append(f"To reproduce:\n\n```{candidate.language.name}\n{example}\n```")
    if errors:
        paragraphs.append("Observed:\n\n" + "\n".join(f"    {error}" for error in errors))
    more = f" {len(trial.fail_to_pass)} checks of this behaviour fail." if len(trial.fail_to_pass) > 1 else ""
    paragraphs.append(
        f"Expected: {'the code above runs, and its assertions hold' if example else 'no such failure'}.{more}"
    )
    return "\n\n".join(paragraphs)


def _symptom(error: str) -> str:
    kind = error.partition(":")[0]
    return kind if re.fullmatch(r"[A-Za-z_][\w.]*", kind) else "AssertionError"


def _says_something(message: str) -> bool:
    """Return whether a failure's message has more than the outcome of an assertion."""
    return bool(re.sub(r"\b(AssertionError|assert|not|True|False|None)\b|\W", "", _error(message)))


def _error(message: str) -> str:
    """Return a failure's message without its place and without addresses of objects."""
    return re.sub(r" at 0x[0-9a-f]+", "", message.partition(": ")[2].strip())


def failing_tests(candidate: Candidate, trial: Trial) -> str:
    """Return the code of the first failing tests, in order; their whole files if it cannot be found."""
    files = hidden_files(candidate)
    ids = (test.partition("::") for test in trial.fail_to_pass)
    tests = list(dict.fromkeys((path, name.partition("[")[0].replace("::", ".")) for path, _, name in ids))
    whole = dict.fromkeys(path for path, _ in tests if path in files)
    return candidate.language.definitions(files, tests[:_MAX_SHOWN_TESTS]) or "\n\n".join(
        files[path] for path in whole
    )


def _example(candidate: Candidate, trial: Trial) -> str:
    """Return the code of a failing test that runs by itself; an empty text without a short one."""
    files = hidden_files(candidate)
    for test in trial.fail_to_pass[:_MAX_EXAMPLES]:
        example = candidate.language.example(files.get(test.partition("::")[0], ""), test)
        if example and example.count("\n") < _MAX_EXAMPLE_LINES and len(example) < _MAX_EXAMPLE_CHARS:
            return example
    return ""
