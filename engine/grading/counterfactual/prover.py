"""Makes references of rows: runs their gold patches in sandboxes and proves their false tests."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import structlog

from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.curation.solution import gold_patch
from engine.errors import SandboxError
from engine.grading.counterfactual.base import Reference, Variant, variant_files, variant_row
from engine.grading.counterfactual.printed_tests import failed_tests
from engine.grading.counterfactual.proof import Unfixed, prove
from engine.grading.counterfactual.python.loops import Unrolled, unrolled
from engine.grading.counterfactual.stops import Stop, stops
from engine.grading.counterfactual.test_files import read_test_files
from engine.grading.counterfactual.visibility import has_hidden_tests
from engine.grading.execution import NO_OVERLAY, Inspection, RunExecutor, RunResult
from engine.grading.submission.filter import PatchFilter
from engine.patches.trees import path_below
from engine.sandbox.base import Sandbox, SandboxBackend
from engine.testing.markers import END
from engine.testing.toolchain import DRIVER
from engine.types import TaskRow, TestKind, TestOutcome, Verdict

_log = structlog.get_logger(__name__)
_NOTE_CHARS = 500


@dataclass(frozen=True, slots=True)
class TrueRun:
    """A run of the true tests under the gold patch."""

    result: RunResult
    files: Mapping[str, bytes]
    """Path → true content of the test files that may be made false."""
    shortened: bool
    """Whether commands after the tests were left out."""


class Prover:
    """Makes references of rows.

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
        return await self.prove(row, patch, await self.true_run(row, patch))

    async def true_run(self, row: TaskRow, patch: str) -> TrueRun:
        """Run the true tests under the given gold patch. Raises SandboxError as ``__call__`` does."""
        files: dict[str, bytes] = {}

        async def inspect(box: Sandbox) -> None:
            files.update(protected(await read_test_files(box, row), row, patch))

        ending = _ending_with_tests(row)
        result = await self._run(ending, patch, inspect=inspect)
        return TrueRun(result, files, shortened=ending != row)

    async def prove(self, row: TaskRow, patch: str, true_run: TrueRun) -> Reference:
        """Return the reference of a row from a true run of its gold patch, and false ones made now.

        Raises as ``__call__`` does.
        """

        async def execute(reference: Reference, variant: Variant | None) -> RunResult:
            return await self._run(variant_row(row, variant), patch, variant_files(reference, variant))

        unfixed = await self._unfixed(row, true_run)
        reference = await prove(row, true_run.result, true_run.files, execute, unfixed=unfixed)
        if not reference.variants or DRIVER in row.answer.test_command:
            return reference
        # A script may not bear what is put in place in its midst: then honest solutions would fail, too.
        placed = await execute(reference, None)
        if placed.verdict is Verdict.PASSED:
            return replace(reference, signs=tuple(sorted({*reference.signs, *placed.signs})))
        note = f"the gold patch fails the true tests where they are put in place: {placed.detail}"
        return replace(reference, files={}, variants=(), decoys=(), coverage={}, note=note[:_NOTE_CHARS])

    async def _unfixed(self, row: TaskRow, true_run: TrueRun) -> Unfixed:
        """Return the tests that the gold patch mends, and where they stop without it.

        They are the row's, else those that fail without the patch; where the rule knows no tests by name,
        those whose failure the runner prints. Where agents can read the tests, it does not matter which
        assertion is false: they can write any of its answers into their code.
        """
        tests = true_run.result.judgement.tests
        named = frozenset(test.test_id for test in tests if test.kind is TestKind.FAIL_TO_PASS)
        needed = has_hidden_tests(row) if named else bool(tests or true_run.files)
        if true_run.result.verdict is not Verdict.PASSED or not needed:
            return Unfixed(failing=named)
        try:
            without = await self._run(_ending_with_tests(row), "")
            found = stops(without.evidence.shown, true_run.files)
            rows = await self._rows(row, true_run.files, found)
        except SandboxError as error:  # unfixed code may end its sandbox
            _log.warning("task without stops", task=row.task.instance_id, reason=str(error))
            return Unfixed(failing=named)
        return Unfixed(
            failing=named or _mended(true_run.result, without), stops={stop: rows[stop] for stop in found}
        )

    async def _rows(
        self, row: TaskRow, files: Mapping[str, bytes], found: Collection[Stop]
    ) -> Mapping[Stop, set[int]]:
        """Return the rows at which loops over tables stop without the patch, from a run if there are any.

        Raises SandboxError.
        """
        rows: defaultdict[Stop, set[int]] = defaultdict(set)
        written = await asyncio.to_thread(_unrolled, files, found)
        if written:
            overlay = {path: one.content for path, one in written.items()}
            run = await self._run(_ending_with_tests(row), "", overlay)
            for path, line in stops(run.evidence.shown, written):
                if line in written[path].rows:
                    before, number = written[path].rows[line]
                    rows[path, before].add(number)
        return rows

    async def _run(
        self,
        row: TaskRow,
        patch: str,
        overlay: Mapping[str, bytes] = NO_OVERLAY,
        inspect: Inspection | None = None,
    ) -> RunResult:
        """Run tests under the gold patch, which is not to blame for signs of tampering."""
        timeout_s = self._timeout_s(row)
        run = await self._runs.execute(row, patch, timeout_s=timeout_s, overlay=overlay, inspect=inspect)
        return run.cleared(run.signs)

    def _timeout_s(self, row: TaskRow) -> float:
        return row.answer.timeout_s or self._config.timeout_s


def _unrolled(files: Mapping[str, bytes], found: Collection[Stop]) -> dict[str, Unrolled]:
    """Return the files with loops at which tests stop, with these written out."""
    lines: defaultdict[str, set[int]] = defaultdict(set)
    for path, line in found:
        lines[path].add(line)
    written = {path: unrolled(files[path], path, own) for path, own in lines.items() if path.endswith(".py")}
    return {path: one for path, one in written.items() if one is not None}


def _mended(solved: RunResult, without: RunResult) -> frozenset[str]:
    """Return the tests that pass with the gold patch alone; printed names where the rule knows none."""
    if not solved.judgement.tests:
        printed = [set(failed_tests(run.evidence.shown)) for run in (without, solved)]
        return frozenset(printed[0] - printed[1])
    passed = [
        {test.test_id for test in run.judgement.tests if test.outcome is TestOutcome.PASSED}
        for run in (solved, without)
    ]
    return frozenset(passed[0] - passed[1])


def _ending_with_tests(row: TaskRow) -> TaskRow:
    """Return the row without commands after its tests: those that put the original tests back, for one."""
    lines = row.answer.test_command.split("\n")
    last = next((number for number, line in enumerate(lines) if END in line), len(lines) - 1)
    return replace(row, answer=replace(row.answer, test_command="\n".join(lines[: last + 1])))


def protected(files: Mapping[str, bytes], row: TaskRow, patch: str) -> dict[str, bytes]:
    """Return the test files that no graded patch can change; solutions bring their own version of others.

    Args:
        patch: the gold patch; files that it touches are code.
    """
    kept = PatchFilter(replace(row, answer=replace(row.answer, gold_patch=patch)))
    return {
        path: content for path, content in files.items() if kept.protects(path_below(row.task.workdir, path))
    }
