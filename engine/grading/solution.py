"""Gold patch of a row, computed if the solution is a script (Harbor's task folders)."""

from __future__ import annotations

from dataclasses import replace

from engine.config.sandbox import SandboxConfig
from engine.datasets.curation.baseline import sandbox_spec
from engine.errors import DatasetError, PatchError
from engine.patches.sections import is_same_change
from engine.sandbox.base import Sandbox, SandboxBackend
from engine.types import TaskRow

_START_AND_DIFF_S = 300.0
"""Lifetime beyond a script's time limit, so that a hanging script ends by that limit."""
_TAIL_CHARS = 300
_REMEDY = (
    ": to grade the state of a system, set own_box in the task's answer (Harbor: environment_mode = "
    '"shared" under [verifier] in task.toml) and turn on grading.own_box'
)


def has_solution(row: TaskRow) -> bool:
    """Return whether the row has a gold patch or a solution script."""
    return bool(row.answer.gold_patch.strip() or _script(row).strip())


def is_gold_patch(row: TaskRow, patch: str) -> bool:
    """Return whether a patch is the row's gold patch; False if the row's solution is a script."""
    return bool(row.answer.gold_patch.strip()) and is_same_change(patch, row.answer.gold_patch)


def _script(row: TaskRow) -> str:
    return str(row.answer.metadata.get("solution") or "")


async def gold_patch(
    row: TaskRow, *, backend: SandboxBackend, sandbox: SandboxConfig, run_id: str, timeout_s: float
) -> str:
    """Return the row's solution as a patch below its workdir; a script's changes elsewhere are lost.

    Args:
        row: with ``answer.gold_patch``, or a script in ``answer.metadata["solution"]``.
        backend, sandbox: sandboxes for the single run of a script, and their limits.
        run_id: the run that owns the sandbox.
        timeout_s: time for the script.

    Raises:
        DatasetError: the row has no solution, or the script fails or changes nothing.
        SandboxError: infrastructure failed.
    """
    if row.answer.gold_patch.strip():
        return row.answer.gold_patch
    if not has_solution(row):
        raise DatasetError("the row has no gold patch")
    name, lifetime_s = f"solution of {row.task.instance_id}", timeout_s + _START_AND_DIFF_S
    spec = sandbox_spec(row.task.image, sandbox, run_id=run_id, name=name, lifetime_s=lifetime_s)
    spec = replace(spec, workdir=row.task.workdir, env=row.task.env)
    async with backend.open(spec) as box:
        await solve(box, row, timeout_s=timeout_s)
        try:
            patch = await box.diff()
        except PatchError as error:
            raise DatasetError(f"the solution script changes too much: {error}") from None
    if not patch.strip():
        raise DatasetError(f"the solution script changes nothing below {row.task.workdir}{_REMEDY}")
    return patch


async def solve(box: Sandbox, row: TaskRow, *, timeout_s: float) -> None:
    """Apply the row's gold patch, or run its solution script, in a sandbox of the task.

    Raises:
        DatasetError: the row has no solution, or it fails.
        SandboxError: the sandbox failed.
    """
    if row.answer.gold_patch.strip():
        try:
            await box.apply_patch(row.answer.gold_patch)
        except PatchError as error:
            raise DatasetError(f"the gold patch does not apply: {error}") from None
        return
    script = _script(row)
    result = await box.exec(["bash", "-s"], timeout_s=timeout_s, cwd=row.task.workdir, stdin=script.encode())
    if result.timed_out:
        raise DatasetError(f"the solution script did not end within {timeout_s:g} s")
    if result.exit_code != 0:
        output = (result.stderr or result.stdout).decode(errors="replace").strip()[-_TAIL_CHARS:]
        raise DatasetError(f"the solution script ended with {result.exit_code}: {output}")
