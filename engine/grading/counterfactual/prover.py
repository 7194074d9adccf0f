"""Creation of rows' references: gold patches are run in sandboxes and mutated tests proven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.grading.counterfactual.base import Reference, Variant, variant_files, variant_row
from engine.grading.counterfactual.proof import prove
from engine.grading.counterfactual.test_files import read_test_files
from engine.grading.execution import NO_OVERLAY, Inspection, RunExecutor, RunResult
from engine.grading.solution import gold_patch
from engine.grading.submission.filter import PatchFilter
from engine.patches.trees import path_below
from engine.sandbox.base import Sandbox, SandboxBackend
from engine.testing.markers import END
from engine.types import TaskRow


@dataclass(frozen=True, slots=True)
class OriginalRun:
    """A run of the original tests under the gold patch."""

    result: RunResult
    files: Mapping[str, bytes]
    """Path → original content of the test files that may be mutated."""
    shortened: bool
    """Whether commands after the tests were left out."""


class Prover:
    """Prover of rows' references.

    Args:
        backend: the sandboxes in which tests run.
        config: time limits and settings of the rules.
        sandbox: limits of the sandboxes.
        run_id: the run that owns the sandboxes.
    """

    def __init__(
        self, *, backend: SandboxBackend, config: GradingConfig, sandbox: SandboxConfig, run_id: str
    ) -> None:
        self._backend = backend
        self._config = config
        self._sandbox = sandbox
        self._run_id = run_id
        self._runs = RunExecutor(backend=backend, config=config, sandbox=sandbox, run_id=run_id)

    async def __call__(self, row: TaskRow) -> Reference:
        """Return the reference of a row, made with its gold patch or solution script.

        Raises:
            DatasetError: the row has no gold patch, or does not pass with it.
            SandboxError: infrastructure failed.
        """
        patch = await gold_patch(
            row,
            backend=self._backend,
            sandbox=self._sandbox,
            run_id=self._run_id,
            timeout_s=self._timeout_s(row),
        )
        return await self.prove(row, patch, await self.original_run(row, patch))

    async def original_run(self, row: TaskRow, patch: str) -> OriginalRun:
        """Run the original tests under the given gold patch. Raises SandboxError as ``__call__`` does."""
        files: dict[str, bytes] = {}

        async def inspect(box: Sandbox) -> None:
            files.update(protected(await read_test_files(box, row), row, patch))

        shortened_row = _ending_with_tests(row)
        result = await self._run(shortened_row, patch, inspect=inspect)
        return OriginalRun(result, files, shortened=shortened_row != row)

    async def prove(self, row: TaskRow, patch: str, original: OriginalRun) -> Reference:
        """Return the reference of a row from its original run and new mutated runs of its gold patch.

        Raises as ``__call__`` does.
        """

        async def execute(reference: Reference, variant: Variant) -> RunResult:
            return await self._run(variant_row(row, variant), patch, variant_files(reference, variant))

        return await prove(row, original.result, original.files, execute)

    async def _run(
        self,
        row: TaskRow,
        patch: str,
        overlay: Mapping[str, bytes] = NO_OVERLAY,
        inspect: Inspection | None = None,
    ) -> RunResult:
        """Run tests under the gold patch; signs of tampering do not count against it."""
        timeout_s = self._timeout_s(row)
        run = await self._runs.execute(row, patch, timeout_s=timeout_s, overlay=overlay, inspect=inspect)
        return run.cleared(run.signs)

    def _timeout_s(self, row: TaskRow) -> float:
        return row.answer.timeout_s or self._config.timeout_s


def _ending_with_tests(row: TaskRow) -> TaskRow:
    """Return the row without commands after its tests, e.g. those that restore the original tests."""
    lines = row.answer.test_command.split("\n")
    last = next((number for number, line in enumerate(lines) if END in line), len(lines) - 1)
    return replace(row, answer=replace(row.answer, test_command="\n".join(lines[: last + 1])))


def protected(files: Mapping[str, bytes], row: TaskRow, patch: str) -> dict[str, bytes]:
    """Return the test files that no graded patch can change; solutions may replace the others.

    Args:
        files: path → content of test files.
        row: their row.
        patch: the gold patch; files that it touches are code.
    """
    patch_filter = PatchFilter(replace(row, answer=replace(row.answer, gold_patch=patch)))
    return {
        path: content
        for path, content in files.items()
        if patch_filter.protects(path_below(row.task.workdir, path))
    }
