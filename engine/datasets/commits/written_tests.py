"""Tests written by a model for commits without any, proven by the same trial as a commit's own tests."""

from __future__ import annotations

import ast
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

from engine.datasets.cached_model import CachedModel, NoAnswerError, Prompt, cap_bytes, find_code
from engine.datasets.commits.filters import Candidate, WrittenTests
from engine.datasets.commits.languages.base import MODULE
from engine.datasets.commits.languages.python.source_reading import find_source_reading
from engine.datasets.commits.trials import Trial
from engine.errors import HostileInputError
from engine.isolation import SOURCE_LIMITS, call_isolated
from engine.threads import in_thread

PATH = "written_tests/test_behaviour.py"
"""Path of the test file, in a folder that projects do not have: no fixtures of their test folders apply."""
NOT_WRITTEN = "not_written"
"""Reason of a commit for which the model wrote no test file."""
REASONS: Mapping[str, str] = {
    "no_tests_run": "written_do_not_run",
    "fails_after": "written_fail_after",
    "no_difference": "written_pass_before",
}
"""Reason of a trial of a commit's own tests → of tests by a model."""
_HOPELESS = frozenset({"tree", "python_version", "does_not_build", "sandbox", "machine", "index", "error"})
"""Reasons that no other test would change."""
_MAX_CHARS = 20_000
_MAX_DETAIL, _MAX_RECORDED = 1500, 500
"""Length of a log that the model sees and of one in the record, characters."""
_MAX_FUNCTIONS = 20
_SHARES = (0.4, 0.35, 0.15)
"""Shares of a prompt for the change, the changed functions, and the last tests with their log."""
_RULES = """You write tests for a change of Python code that was made without any.

Write one file for pytest. At least one test fails before the change and passes after it; none fails after it.

Rules:
1. Check the behaviour that the change brings, by values that a caller observes; never the text of the code.
2. The file is imported before the change too: import modules at its top, and use new names in tests only.
3. Import nothing but the project, the standard library and pytest. Define plain functions named test_….
4. No network, no time or date, no randomness, no order between tests; files only below tmp_path.
5. Keep it short: one to five tests with names that describe the behaviour.

Answer with the file in one block that begins with ```python and ends with ```."""


async def try_written_tests(
    candidate: Candidate,
    writer: CachedModel,
    try_tests: Callable[[Candidate], Awaitable[Trial]],
    *,
    seed: int,
) -> tuple[Candidate, Trial]:
    """Have a model write tests until a trial accepts them; return the last candidate and its trial.

    The trial's duration is that of all attempts.

    Args:
        candidate: a commit without tests.
        writer: the model.
        try_tests: the trial of a candidate with tests.
        seed: seed of the model's first answer.

    Raises:
        RunEndingError: the model answers no question any more.
    """
    functions = await in_thread(partial(_changed_functions, candidate))
    rejected: list[dict[str, str]] = []
    last, trial, seconds = "", Trial(reason=NOT_WRITTEN), 0.0
    for attempt in range(writer.limits.attempts):
        try:
            answer = await writer.ask(partial(_prompt, candidate, functions, last), seed=seed + attempt)
            code = await in_thread(partial(read_tests, answer))
        except (NoAnswerError, HostileInputError) as error:
            trial, last = Trial(reason=NOT_WRITTEN, detail=str(error)), str(error)
        else:
            tests = WrittenTests(model=writer.name, code=code, rejected=tuple(rejected))
            candidate = with_tests(candidate, tests)
            trial = await try_tests(candidate)
            seconds += trial.seconds
            trial = trial.model_copy(update={"reason": REASONS.get(trial.reason, trial.reason)})
            if not trial.reason or trial.reason in _HOPELESS:
                break
            last = f"{code}\n\n{trial.reason}:\n{trial.detail[-_MAX_DETAIL:]}"
        rejected.append({"result": trial.reason, "detail": trial.detail[-_MAX_RECORDED:]})
    return candidate, trial.model_copy(update={"seconds": seconds})


def _changed_functions(candidate: Candidate) -> str:
    """Return the code of changed and added functions after the change."""
    files = {path: new for path, (_, new) in (candidate.commit.contents or {}).items() if new is not None}
    names = [
        (path, name)
        for path, change in candidate.entities.items()
        for name in (*change.changed, *change.added)
        if name != MODULE
    ]
    return candidate.language.definitions(files, names[:_MAX_FUNCTIONS])


def with_tests(candidate: Candidate, tests: WrittenTests) -> Candidate:
    """Return a candidate whose commit adds a test file."""
    contents = {**(candidate.commit.contents or {}), PATH: (None, tests.code)}
    commit = candidate.commit.model_copy(update={"contents": contents})
    return replace(candidate, commit=commit, test_paths=(PATH,), written_tests=tests)


def read_tests(answer: str) -> str:
    """Return the test file in an answer.

    Raises:
        NoAnswerError: there is none, or it is no Python with test functions, or it may read source code.
        HostileInputError: the file exceeds the parser's limits.
    """
    code = find_code(answer, max_chars=_MAX_CHARS)
    if problem := call_isolated(partial(_problem, code), SOURCE_LIMITS):
        raise NoAnswerError(problem)
    return code


def _problem(code: str) -> str:
    """Return why a file is no use as tests; empty if it is."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"no Python: {error}"
    functions = (node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    if not any(name.startswith("test") for name in functions):
        return "there is no function named test_…"
    reading = find_source_reading(tree)
    return f"tests must not read source code or files outside of tmp_path: {reading}" if reading else ""


def _prompt(candidate: Candidate, functions: str, last: str, size: int) -> Prompt:
    texts = zip((candidate.gold_patch, functions, last), _SHARES, strict=True)
    change, code, rejected = (cap_bytes(text, share * max(size - len(_RULES), 0)) for text, share in texts)
    modules = ", ".join(sorted(map(candidate.language.module_name, candidate.entities)))
    parts = [f"Changed modules: {modules[:500]}", f"The change:\n\n{change}", f"The code after it:\n\n{code}"]
    if rejected:
        parts.append(f"Your last answer was rejected:\n\n{rejected}")
    parts.append("Write the test file of this change now, in one block ```python … ```.")
    return [{"role": "system", "content": _RULES}, {"role": "user", "content": "\n\n".join(parts)}]
