"""Faults written by a model into one function, proven by the same trial as injected ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

from engine.datasets.cached_model import CachedModel, NoAnswerError, Prompt, cap_bytes
from engine.datasets.curation.candidates import Candidate
from engine.datasets.curation.measurements import Trial
from engine.datasets.curation.written.functions import Reading, read_fault, unindented
from engine.errors import HostileInputError
from engine.threads import in_thread

_PROBLEMS: Mapping[str, str] = {
    "unnoticed": "no test fails",
    "odd_outcome": "tests are skipped or missing instead of failing",
    "unstable": "the tests fail in some runs only",
    "no_report": "the tests do not end, or end the interpreter",
    "not_mended": "tests fail without the fault, too",
}
"""Problem of a trial → what the model is told; with other problems it is not asked again."""
_MAX_ANSWER = 2000
"""Part of a rejected answer that the model sees, characters."""
_MAX_TESTS = 10
"""Tests that are named to the model."""
_SHARES = (0.7, 0.2, 0.03, 0.07)
"""Shares of a prompt for the function, for the last answer with the reason of its rejection, for the
function's name and path, and for the names of tests."""
_FRAME = 300
"""Size of the words between them, bytes."""
_RULES = """You write a fault into a function of Python code. Engineers will have to find and mend it.

Rules:
1. Make a mistake that a developer could make: a wrong condition, a missed case, a wrong order, a stale value.
2. The function still works for most inputs. At least one of the tests that execute it must fail.
3. Keep name, decorators, parameters, annotations and docstring. Change few lines; leave all others alone.
4. Nothing may point at the fault: no new comments, no names or messages that speak of it.
5. The function still ends for every input and uses no network, time, randomness or files.

Answer with the whole function in one block that begins with ```python and ends with ```."""


async def write_fault(
    candidate: Candidate,
    writer: CachedModel,
    try_fault: Callable[[Candidate], Awaitable[Trial]],
    *,
    seed: int,
) -> tuple[Candidate, Trial]:
    """Have a model write a fault until a trial proves it; return the last candidate and its trial.

    The trial's duration is that of all attempts.

    Args:
        candidate: a function whose fault has yet to be written.
        writer: the model.
        try_fault: the trial of a candidate with a fault.
        seed: seed of the model's first answer.

    Raises:
        RunEndingError: the model answers no question any more.
    """
    last, trial, seconds, rejected = candidate, Trial(problem="not_written"), 0.0, ""
    for attempt in range(writer.limits.attempts):
        answer = ""
        try:
            answer = await writer.ask(partial(prompt, candidate, rejected), seed=seed + attempt)
            reading = await in_thread(partial(read_fault, answer, candidate))
        except (NoAnswerError, HostileInputError) as error:
            reading = Reading(reason="not_written", detail=str(error))
        if reading.fault is None:
            last, trial = candidate, Trial(problem=reading.reason, detail=reading.detail)
        else:
            last = replace(candidate, faults=(reading.fault,))
            trial = await try_fault(last)
            seconds += trial.seconds
            if trial.problem not in _PROBLEMS:
                break
        rejected = f"{reading.detail or _PROBLEMS[trial.problem]}\n\n{answer[:_MAX_ANSWER]}"
    return last, replace(trial, seconds=seconds)


def prompt(candidate: Candidate, rejected: str, size: int) -> Prompt:
    """Return the question for a fault.

    Args:
        candidate: a function whose fault has yet to be written.
        rejected: the last answer with the reason of its rejection; empty for the first question.
        size: about the maximum number of bytes.
    """
    fault = candidate.fault
    place = f"{fault.function[:300]} in {candidate.path[:300]}"
    tests = "\n".join(test[:200] for test in candidate.tests[:_MAX_TESTS])
    texts = zip((unindented(fault.original), rejected, place, tests), _SHARES, strict=True)
    left = max(size - len(_RULES) - _FRAME, 0)
    code, rejected, place, tests = (cap_bytes(text, share * left) for text, share in texts)
    parts = [f"{place}:\n\n```python\n{code}\n```", f"Tests that execute it:\n{tests}"]
    if rejected:
        parts.append(f"Your last answer was rejected: {rejected}")
    parts.append("Write the fault into the function now, in one block ```python … ```.")
    return [{"role": "system", "content": _RULES}, {"role": "user", "content": "\n\n".join(parts)}]
