"""Test strength of a task: the share of plausible wrong patches that its tests reject."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from engine.config.sandbox import SandboxConfig
from engine.datasets.curation.baseline import sandbox_spec
from engine.datasets.wrong_patches import ROLLOUT, WrongPatch, wrong_patches
from engine.events.health import MAX_NAMED, TestStrength, WrongPatchCounts
from engine.isolation import SOURCE_LIMITS, run_isolated
from engine.patches.apply import touched
from engine.patches.sections import is_same_change
from engine.patches.trees import Tree
from engine.sandbox.base import SandboxBackend
from engine.types import Grade, TaskRow, Verdict

_LIFETIME_S = 300.0
_TIMES_SOLUTION, _MIN_S = 5.0, 20.0
"""Time limit of a wrong patch's tests: so many times the solution's grading, at least so many seconds."""
_DETAIL_CHARS = 300
_DECIDED = frozenset({Verdict.PASSED, Verdict.FAILED, Verdict.TEST_TIMEOUT})


async def choose_wrong_patches(
    row: TaskRow,
    solution: str,
    failed: Iterable[str],
    *,
    limit: int,
    backend: SandboxBackend,
    sandbox: SandboxConfig,
    run_id: str,
) -> list[WrongPatch]:
    """Return the patches of failed rollouts, at most half of the limit, then made ones.

    Args:
        row: the task.
        solution: its solution, a patch.
        failed: patches of failed rollouts.
        limit: maximum number of patches.
        backend, sandbox: sandboxes to read the task's files from, and their limits.
        run_id: the run that owns the sandbox.

    Raises:
        PatchError: the solution does not apply to the task's files.
        HostileInputError: the task's files exceed the parser's limits.
        SandboxError: infrastructure failed.
    """
    before = await files_before(row, solution, backend=backend, sandbox=sandbox, run_id=run_id)
    rollouts = [
        WrongPatch(ROLLOUT, f"failed rollout {number}", patch)
        for number, patch in enumerate(_distinct(failed, besides=solution)[: limit // 2], start=1)
    ]
    left = limit - len(rollouts)
    make = partial(wrong_patches, before, solution, limit=left, seed=row.task.instance_id)
    return rollouts + await run_isolated(make, SOURCE_LIMITS)


async def files_before(
    row: TaskRow, solution: str, *, backend: SandboxBackend, sandbox: SandboxConfig, run_id: str
) -> Tree:
    """Return the task's versions of the files that the solution changes.

    Raises:
        PatchError: git cannot read the solution.
        SandboxError: infrastructure failed.
    """
    paths = await asyncio.to_thread(touched, solution)
    name = f"files of {row.task.instance_id}"
    spec = sandbox_spec(row.task.image, sandbox, run_id=run_id, name=name, lifetime_s=_LIFETIME_S)
    async with backend.open(replace(spec, workdir=row.task.workdir, env=row.task.env)) as box:
        if row.answer.setup_patch:
            await box.apply_patch(row.answer.setup_patch)
        return await box.fetch_files(paths)


def _distinct(patches: Iterable[str], *, besides: str) -> list[str]:
    return [patch for patch in dict.fromkeys(patches) if patch.strip() and not is_same_change(patch, besides)]


async def measure_strength(
    row: TaskRow,
    patches: Sequence[WrongPatch],
    grade: Callable[[TaskRow, WrongPatch], Awaitable[Grade]],
    *,
    solution_s: float,
    timeout_s: float,
) -> TestStrength:
    """Grade wrong patches; a time-out rejects its patch.

    Only patches that the tests decide about count: not those that do not apply or tamper with the tests, nor
    gradings lost to infrastructure.

    Args:
        row: the task.
        patches: wrong patches.
        grade: grades one patch.
        solution_s: duration of the solution's grading, seconds; wrong patches get a multiple of it.
        timeout_s: time limit of the tests in any case, seconds.
    """
    timed = limited_by_solution(row, solution_s, timeout_s)
    found: defaultdict[str, list[bool]] = defaultdict(list)
    passed: list[str] = []
    for wrong in patches:
        result = await grade(timed, wrong)
        if result.verdict not in _DECIDED:
            continue
        found[wrong.kind].append(result.verdict is not Verdict.PASSED)
        if result.verdict is Verdict.PASSED:
            passed.append(wrong.detail[:_DETAIL_CHARS])
    kinds = {kind: WrongPatchCounts(graded=len(each), rejected=sum(each)) for kind, each in found.items()}
    return TestStrength(kinds=kinds, passed=passed[:MAX_NAMED])


def limited_by_solution(row: TaskRow, solution_s: float, timeout_s: float) -> TaskRow:
    """Return a task whose tests have a multiple of the solution's time, for the grading of wrong patches.

    Args:
        row: the task.
        solution_s: duration of the solution's grading, seconds.
        timeout_s: time limit of the tests in any case, seconds.
    """
    timeout_s = min(timeout_s, max(_MIN_S, _TIMES_SOLUTION * solution_s))
    return replace(row, answer=replace(row.answer, timeout_s=timeout_s))
