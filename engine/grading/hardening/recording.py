"""Observation of a solved task: calls that its tests make, nearby calls, and their results, in one sandbox.

    required tests with the recorder ─▶ calls ─▶ nearby calls ─▶ results, twice ─▶ observations

Everything that comes out of the sandbox is read within limits, in a process of its own.
"""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path

from engine.grading.execution import RunExecutor
from engine.grading.hardening.generated_tests import is_comparable
from engine.grading.hardening.inputs import Call, Observation, parse_calls, parse_results
from engine.isolation import SOURCE_LIMITS, run_isolated
from engine.patches.trees import FileState, Tree
from engine.python_syntax import parse_python
from engine.sandbox.base import Sandbox
from engine.testing.testrun import TEST_ENVIRONMENT
from engine.types import TaskRow

_FOLDER = "/tmp/trainyard-hardening"  # noqa: S108  inside the sandbox
_CALLS, _RESULTS = f"{_FOLDER}/calls.jsonl", f"{_FOLDER}/results.jsonl"
_MAX_BYTES = 4 << 20
"""Maximum size of a file that is read from the sandbox."""
_TIMES_SLOWER = 10.0
"""Factor of the tests' time limit while calls are recorded."""
_REPEAT_S = 120.0
"""Time limit of one repetition of all calls, seconds; above ``_FIRST_S`` of ``call_repeater``."""
_HERE = Path(__file__).parent


async def observe(
    row: TaskRow, solution: str, after: Tree, before: Tree, runs: RunExecutor, *, timeout_s: float
) -> tuple[int, list[Observation]]:
    """Return the number of recorded calls, and results of calls that are the same when repeated.

    The results were equal in two processes, with calls in opposite order, other hash seeds, time zones and
    clocks.

    Args:
        row: a task whose tests are run by the driver.
        solution: its solution, a patch.
        after, before: the files that the solution changes, with and without it.
        runs: executes the tests.
        timeout_s: time limit of the tests, seconds.

    Raises:
        HostileInputError: the files, the calls or the results take too long to read.
        SandboxError: infrastructure failed in every attempt.
    """
    settings = {
        "workdir": row.task.workdir,
        "roots": _roots(row.answer.test_command),
        "tests": required_files(row),
        "changed": await run_isolated(partial(changed_functions, before, after), SOURCE_LIMITS),
        "calls": _CALLS,
        "results": _RESULTS,
    }
    overlay = {
        f"{_FOLDER}/trainyard_calls.py": (_HERE / "call_recorder.py").read_bytes(),
        f"{_FOLDER}/trainyard_repeat.py": (_HERE / "call_repeater.py").read_bytes(),
        f"{_FOLDER}/trainyard_literals.py": (_HERE / "literals.py").read_bytes(),
        f"{_FOLDER}/trainyard_calls.json": json.dumps(settings).encode(),
    }
    recorded, observations = 0, list[Observation]()

    async def inspect(box: Sandbox) -> None:
        nonlocal recorded, observations
        data = await _read(box, _CALLS)
        calls = await run_isolated(partial(parse_calls, data), SOURCE_LIMITS)
        recorded = sum(not call.nearby for call in calls)
        observations = await _repeated(box, calls)

    traced = row.answer.test_command.replace(" -- ", f" --root {_FOLDER} -- -p trainyard_calls ", 1)
    await runs.execute(
        replace(row, answer=replace(row.answer, test_command=traced)),
        solution,
        timeout_s=timeout_s * _TIMES_SLOWER,
        overlay=overlay,
        inspect=inspect,
    )
    return recorded, observations


def required_files(row: TaskRow) -> list[str]:
    """Return the files of the required tests, relative to the workdir."""
    tests = (*row.answer.fail_to_pass, *row.answer.pass_to_pass)
    return sorted({test.partition("::")[0] for test in tests})


def changed_functions(before: Tree, after: Tree) -> dict[str, list[tuple[int, int]]]:
    """Return path → first and last line of each function with a changed line, decorators included.

    Files that are no Python of this version have none.
    """
    ranges = {}
    for path, state in after.items():
        if path.endswith(".py") and not state.same(before.get(path)):
            ranges[path] = _changed_ranges(before.get(path), state)
    return ranges


def _changed_ranges(old: FileState | None, new: FileState) -> list[tuple[int, int]]:
    try:
        tree = parse_python(new.data)
    except ValueError:
        return []
    lines = [state.data.splitlines() if state is not None else [] for state in (old, new)]
    matcher = SequenceMatcher(a=lines[0], b=lines[1])
    changed = [
        (start + 1, max(start + 1, stop))
        for kind, _, _, start, stop in matcher.get_opcodes()
        if kind != "equal"
    ]
    functions = [
        (min([node.lineno, *(part.lineno for part in node.decorator_list)]), node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [
        (first, last)
        for first, last in functions
        if any(start <= last and stop >= first for start, stop in changed)
    ]


def _roots(command: str) -> list[str]:
    words = shlex.split(command)
    return [words[at + 1] for at, word in enumerate(words[:-1]) if word == "--root"]


async def _repeated(box: Sandbox, calls: Sequence[Call]) -> list[Observation]:
    """Return the results of calls that two processes agree on.

    The second process repeats the calls that have a result: both fit into the time limit.
    """
    program = f"python3 -S -P -B {_FOLDER}/trainyard_repeat.py"
    first = await _results(box, program, calls, {"PYTHONHASHSEED": "1"})
    calls = [observation.call for observation in first]
    again = await _results(box, f"{program} later", calls, {"PYTHONHASHSEED": "2", "TZ": "Asia/Kolkata"})
    return [observation for observation in first if observation in again and is_comparable(observation)]


async def _results(
    box: Sandbox, command: str, calls: Sequence[Call], environment: Mapping[str, str]
) -> list[Observation]:
    lines = [
        json.dumps({"module": call.module, "steps": [astuple(step) for step in call.steps]}) for call in calls
    ]
    await box.write_file(_CALLS, "\n".join(lines).encode())
    await box.write_file(_RESULTS, b"")
    await box.exec(command, timeout_s=_REPEAT_S, env={**TEST_ENVIRONMENT, **environment})
    data = await _read(box, _RESULTS)
    return await run_isolated(partial(parse_results, data, calls), SOURCE_LIMITS)


async def _read(box: Sandbox, path: str) -> bytes:
    """Return a file of the sandbox; nothing if it is missing or too large."""
    try:
        return await box.read_file(path, max_bytes=_MAX_BYTES)
    except (OSError, ValueError):
        return b""
