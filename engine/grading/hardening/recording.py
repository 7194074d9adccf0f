"""Observation of a solved task: calls that its tests make, nearby calls, and their results, in one sandbox.

    required tests with the recorder ─▶ calls ─▶ nearby calls ─▶ results, twice ─▶ observations
        ─▶ results with each wrong patch in place of the solution ─▶ observations that differ

Everything that comes out of the sandbox is read within limits, in a process of its own.
"""

from __future__ import annotations

import ast
import json
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any

from engine.grading.execution import RunExecutor
from engine.grading.hardening.generated_tests import is_comparable
from engine.grading.hardening.inputs import (
    Call,
    Observation,
    compared_results,
    parse_calls,
    parse_results,
)
from engine.isolation import SOURCE_LIMITS, run_isolated
from engine.patches.apply import changes_between
from engine.patches.trees import FileState, Tree
from engine.python_syntax import drop_docstrings, parse_python
from engine.sandbox.base import Sandbox
from engine.testing.testrun import TEST_ENVIRONMENT
from engine.types import TaskRow

_FOLDER = "/tmp/trainyard-hardening"  # noqa: S108  inside the sandbox
_CALLS, _RESULTS = f"{_FOLDER}/calls.jsonl", f"{_FOLDER}/results.jsonl"
_MAX_BYTES = 4 << 20
"""Maximum size of a file that is read from the sandbox."""
_TIMES_SLOWER = 10.0
"""Factor of the tests' time limit while calls are recorded."""
_FIRST_S, _AGAIN_S = 60.0, 90.0
"""Time in which the first repetition starts calls, and in which the second one does, seconds."""
_OTHER_S, _OTHERS_S = 15.0, 90.0
"""Time in which one repetition without the solution starts calls, and that of all of them, seconds."""
_END_S = 10.0
"""Time after which a repetition that starts no further call is ended, seconds."""
_MAX_CONSTANTS, _MAX_CONSTANT = 40, 40
"""Number of constants of the changed functions that become arguments, and characters of a text among them."""
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Observed:
    """Observations of a solved task.

    Attributes:
        recorded: number of calls that the tests make.
        observations: results that are the same when a call is repeated.
        changed: those that differ without the solution, or were not compared.
        differing: those that differ with each wrong patch.
    """

    recorded: int
    observations: Sequence[Observation] = ()
    changed: Collection[Observation] = ()
    differing: Sequence[Collection[Observation]] = ()


async def observe(
    row: TaskRow,
    solution: str,
    trees: Sequence[Tree],
    wrong: Sequence[Tree],
    runs: RunExecutor,
    *,
    timeout_s: float,
) -> Observed:
    """Return results of calls that are the same when repeated, and those that differ with wrong patches.

    The results were equal in two processes, with calls in opposite order, other hash seeds, time zones and
    clocks.

    Args:
        row: a task whose tests are run by the driver.
        solution: its solution, a patch.
        trees: the files that the solution changes, without and with it.
        wrong: these files with each wrong patch.
        runs: executes the tests.
        timeout_s: time limit of the tests, seconds.

    Raises:
        HostileInputError: the files, the calls or the results take too long to read.
        SandboxError: infrastructure failed in every attempt.
    """
    before, after = trees
    changed = await run_isolated(partial(changed_functions, before, after), SOURCE_LIMITS)
    constants = await run_isolated(partial(constants_of, after, changed), SOURCE_LIMITS)
    settings = {
        "workdir": row.task.workdir,
        "roots": _roots(row.answer.test_command),
        "tests": required_files(row),
        "changed": changed,
        "calls": _CALLS,
        "results": _RESULTS,
    }
    overlay = {
        f"{_FOLDER}/trainyard_calls.py": (_HERE / "call_recorder.py").read_bytes(),
        f"{_FOLDER}/trainyard_repeat.py": (_HERE / "call_repeater.py").read_bytes(),
        f"{_FOLDER}/trainyard_literals.py": (_HERE / "literals.py").read_bytes(),
        f"{_FOLDER}/trainyard_names.py": (_HERE / "public_names.py").read_bytes(),
        f"{_FOLDER}/trainyard_calls.json": json.dumps(settings).encode(),
    }
    observed = Observed(0)

    async def inspect(box: Sandbox) -> None:
        nonlocal observed
        data = await _read(box, _CALLS)
        calls = await run_isolated(partial(parse_calls, data, constants), SOURCE_LIMITS)
        observations = await _repeated(box, calls)
        observed = Observed(sum(not call.nearby for call in calls))
        if observations:
            (_, unchanged), *found = await _compared(box, observations, after, (before, *wrong))
            changed = frozenset(observations) - unchanged
            differing = [differs for differs, _ in found]
            observed = replace(observed, observations=observations, changed=changed, differing=differing)

    traced = row.answer.test_command.replace(" -- ", f" --root {_FOLDER} -- -p trainyard_calls ", 1)
    await runs.execute(
        replace(row, answer=replace(row.answer, test_command=traced)),
        solution,
        timeout_s=timeout_s * _TIMES_SLOWER,
        overlay=overlay,
        inspect=inspect,
    )
    return observed


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


def constants_of(tree: Tree, ranges: Mapping[str, Sequence[tuple[int, int]]]) -> list[Any]:
    """Return the different numbers and short texts in functions, without their docstrings.

    Args:
        tree: the files.
        ranges: path → first and last lines of the functions, see ``changed_functions``.
    """
    constants: dict[tuple[type, object], Any] = {}
    for path, lines in ranges.items():
        for node in ast.walk(drop_docstrings(parse_python(tree[path].data))) if lines else ():
            value = node.value if isinstance(node, ast.Constant) else None
            is_short = isinstance(value, str | bytes) and 0 < len(value) <= _MAX_CONSTANT
            if (is_short or type(value) in (int, float)) and any(
                first <= getattr(node, "lineno", 0) <= last for first, last in lines
            ):
                constants.setdefault((type(value), value), value)
    return list(constants.values())[:_MAX_CONSTANTS]


def _roots(command: str) -> list[str]:
    words = shlex.split(command)
    return [words[at + 1] for at, word in enumerate(words[:-1]) if word == "--root"]


async def _repeated(box: Sandbox, calls: Sequence[Call]) -> list[Observation]:
    """Return the results of calls that two processes agree on.

    The second process repeats the calls that have a result: both fit into the time limit.
    """
    first = await _results(box, calls, _FIRST_S, PYTHONHASHSEED="1")
    calls = [observation.call for observation in first]
    again = {*await _results(box, calls, _AGAIN_S, "later", PYTHONHASHSEED="2", TZ="Asia/Kolkata")}
    return [observation for observation in first if observation in again and is_comparable(observation)]


async def _compared(
    box: Sandbox, observations: Sequence[Observation], solved: Tree, others: Sequence[Tree]
) -> list[tuple[frozenset[Observation], frozenset[Observation]]]:
    """Return the observations that differ in each of other trees, and those that do not; none if time is up.

    Args:
        box: a sandbox of the solved task; it is left with the last tree.
        observations: of the solved task.
        solved: the files that differ, as in the sandbox.
        others: these files in other versions.
    """
    compared = []
    end = time.monotonic() + _OTHERS_S
    calls, present = [observation.call for observation in observations], solved
    for tree in others:
        left_s = min(_OTHER_S, end - time.monotonic())
        if left_s <= 0:
            compared.append((frozenset[Observation](), frozenset[Observation]()))
            continue
        await box.commit_files(changes_between(present, tree))
        present = tree
        await _run(box, calls, left_s, PYTHONHASHSEED="1")
        data = await _read(box, _RESULTS)
        differing, same = await run_isolated(partial(compared_results, data, observations), SOURCE_LIMITS)
        compared.append(
            (frozenset(observations[at] for at in differing), frozenset(observations[at] for at in same))
        )
    return compared


async def _results(
    box: Sandbox, calls: Sequence[Call], seconds: float, *words: str, **environment: str
) -> list[Observation]:
    await _run(box, calls, seconds, *words, **environment)
    data = await _read(box, _RESULTS)
    return await run_isolated(partial(parse_results, data, calls), SOURCE_LIMITS)


async def _run(box: Sandbox, calls: Sequence[Call], seconds: float, *words: str, **environment: str) -> None:
    """Repeat calls; no further one is started after some seconds."""
    lines = [
        json.dumps({"module": call.module, "steps": [astuple(step) for step in call.steps]}) for call in calls
    ]
    await box.write_file(_CALLS, "\n".join(lines).encode())
    await box.write_file(_RESULTS, b"")
    command = ["python3", "-S", "-P", "-B", f"{_FOLDER}/trainyard_repeat.py", f"{seconds:.1f}", *words]
    await box.exec(shlex.join(command), timeout_s=seconds + _END_S, env={**TEST_ENVIRONMENT, **environment})


async def _read(box: Sandbox, path: str) -> bytes:
    """Return a file of the sandbox; nothing if it is missing or too large."""
    try:
        return await box.read_file(path, max_bytes=_MAX_BYTES)
    except (OSError, ValueError):
        return b""
