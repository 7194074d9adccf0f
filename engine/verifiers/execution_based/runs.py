"""Runs of tests on a task's tree with a candidate's patch, each in a fresh sandbox.

    sandbox as agents see it ── patch, filtered as in grading ── test files ── pytest ── report

Hidden files are removed and no answer is read. If tests hang or end the runner, the files are run one by one,
so that only their own file loses its outcomes.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.health import row_content
from engine.errors import HostileInputError, SandboxError
from engine.grading.evidence import Evidence, statuses_of
from engine.grading.execution import NO_OVERLAY, RunExecutor, gather
from engine.grading.logs import swebench
from engine.grading.running.placement import PlacementError
from engine.grading.running.request import RunRequest
from engine.grading.submission.apply import apply_graded
from engine.isolation import run_isolated
from engine.patches.sections import patch_hash
from engine.sandbox.base import Sandbox, SandboxBackend
from engine.sandbox.failures import retried
from engine.sandbox.integrity import prepare_for_agent
from engine.types import TaskRow
from engine.verifiers.execution_based.commands import PytestCommand, visible_row
from engine.verifiers.execution_based.reports import RunStatus, TestReport, merged, not_run, report_of
from engine.verifiers.execution_based.store import MemoryReports, ReportStore

T = TypeVar("T")
_LEAST_FILE_S = 5.0
_SEPARATE_BUDGET = 3
_SEPARABLE = frozenset({RunStatus.TIMED_OUT, RunStatus.NO_REPORT})


@dataclass(frozen=True, slots=True, kw_only=True)
class TestSelection:
    """Tests to run, and test files to put in place for them."""

    __test__ = False
    files: tuple[str, ...]
    """Test files, relative to the workdir."""
    added: Mapping[str, bytes] = field(default_factory=dict)
    """Path → content of test files that the repository does not have."""
    signs: tuple[str, ...] = ()
    """Signs of tampering in runs of the untouched repository."""
    script: str = ""
    """The dataset's own script that runs the tests, instead of pytest with ``files``."""


class TestRuns:
    """Executor of tests, at most ``max_parallel`` runs at once; reports of identical patches are reused.

    Args:
        backend: the sandboxes in which tests run.
        sandbox: limits of the sandboxes.
        run_id: the run that owns the sandboxes.
        timeout_s: time limit of one run.
        max_parallel: maximum number of concurrent runs.
        store: store of reports; None keeps them in memory.
    """

    __test__ = False

    def __init__(
        self,
        *,
        backend: SandboxBackend,
        sandbox: SandboxConfig,
        run_id: str,
        timeout_s: float = 300.0,
        max_parallel: int = 2,
        store: ReportStore | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._executor = RunExecutor(backend=backend, config=GradingConfig(), sandbox=sandbox, run_id=run_id)
        self._timeout_s = timeout_s
        self._permits = asyncio.Semaphore(max_parallel)
        self._store = store or MemoryReports()
        self._locks: dict[str, asyncio.Lock] = {}
        self._contents: dict[str, tuple[TaskRow, str]] = {}
        """Task id → the last row with this id, and the hash of its content."""

    async def report(self, row: TaskRow, patch: str, selection: TestSelection) -> TestReport:
        """Return the report of the tests under a candidate's patch, from the store if present.

        Raises:
            SandboxError: infrastructure failed in every attempt; such a run is not stored.
        """
        if not patch.strip():
            return not_run(RunStatus.NO_CHANGE, "the patch is empty")
        key = await self._key(row, patch_hash(patch), selection)
        return await self._stored(key, lambda: self.run(row, patch, selection))

    async def untouched(
        self, row: TaskRow, selection: TestSelection, *, repeat: int = 0, trace: bool = False
    ) -> TestReport:
        """Return the report of the tests on the untouched repository, from the store if present.

        Args:
            repeat: index of the repetition; each is run once.
            trace: whether to record which files each test executes.

        Raises:
            SandboxError: infrastructure failed in every attempt; such a run is not stored.
        """
        key = await self._key(row, f"untouched {repeat}{' traced' if trace else ''}", selection)
        return await self._stored(key, lambda: self.run(row, "", selection, trace=trace))

    async def run(
        self, row: TaskRow, patch: str, selection: TestSelection, *, trace: bool = False
    ) -> TestReport:
        """Run tests on the tree with a patch, or on the untouched tree if it is empty.

        Args:
            trace: whether to record which files each test executes, if the image's pytest can.

        Raises:
            SandboxError: infrastructure failed in every attempt.
        """
        report = await self._run(row, patch, selection, self._timeout_s, trace)
        if report.status not in _SEPARABLE or len(selection.files) <= 1:
            return report
        return await self._separately(row, patch, selection, trace)

    async def _separately(
        self, row: TaskRow, patch: str, selection: TestSelection, trace: bool
    ) -> TestReport:
        """Run files one by one.

        Each has the time limit of a whole run, so that slow files count as in a joint run. Once files that
        hit it have spent ``_SEPARATE_BUDGET`` such limits, the others share one.
        """
        least = max(_LEAST_FILE_S, self._timeout_s / len(selection.files))
        left_s = _SEPARATE_BUDGET * self._timeout_s
        reports: list[TestReport] = []
        for file in selection.files:
            limit = max(least, min(self._timeout_s, left_s))
            reports.append(await self._run(row, patch, replace(selection, files=(file,)), limit, trace))
            if reports[-1].status is RunStatus.TIMED_OUT:
                left_s -= limit
        return merged(reports)

    async def inspect(self, row: TaskRow, look: Callable[[Sandbox], Awaitable[T]]) -> T:
        """Return the result of ``look`` in a sandbox with the untouched repository.

        Raises:
            SandboxError: infrastructure failed in every attempt.
        """

        async def attempt() -> T:
            async with self._executor.open(row, lifetime_s=self._timeout_s) as box:
                await _prepared(box, visible_row(row))
                return await look(box)

        def counted(problem: str) -> T:
            raise SandboxError(problem)

        async with self._permits:
            return await retried(attempt, retries=self._sandbox.start_retries, counted=counted)

    async def _run(
        self, row: TaskRow, patch: str, selection: TestSelection, limit_s: float, trace: bool
    ) -> TestReport:
        async with self._permits:
            return await retried(
                lambda: self._once(row, patch, selection, limit_s, trace),
                retries=self._sandbox.start_retries,
                counted=lambda problem: not_run(RunStatus.NO_REPORT, problem),
            )

    async def _once(
        self, row: TaskRow, patch: str, selection: TestSelection, limit_s: float, trace: bool
    ) -> TestReport:
        command, visible = PytestCommand.of(row), visible_row(row)
        added = {path: content.decode("utf-8", "replace") for path, content in selection.added.items()}
        protected = replace(visible, answer=replace(visible.answer, test_files=added))
        async with self._executor.open(row, lifetime_s=limit_s) as box:
            path = await _prepared(box, visible)
            applied = await apply_graded(box, patch, protected)
            changed = applied.filtered.changes.paths
            if applied.problem:
                return not_run(RunStatus.PATCH_FAILED, applied.problem)
            if patch.strip() and not changed:
                left_out = ", ".join(applied.filtered.left_out)
                return not_run(RunStatus.NO_CHANGE, f"only tests are changed: {left_out}")
            script = selection.script or command.script(
                selection.files, path=path, trace=trace and command.traces
            )
            answer = replace(protected.answer, test_command=script, pass_to_pass=_guarded(selection.files))
            request = RunRequest(
                answer=answer, timeout_s=limit_s, changed=changed, overlay=selection.added or NO_OVERLAY
            )
            try:
                evidence = await gather(box, request)
            except PlacementError as error:
                if not error.is_caused_by(f"{row.task.workdir}/{name}" for name in changed):
                    raise
                return not_run(RunStatus.PATCH_FAILED, str(error))
        printed = await _printed(row, evidence) if selection.script else None
        return await asyncio.to_thread(report_of, evidence, selection.signs, printed)

    async def _stored(self, key: str, make: Callable[[], Awaitable[TestReport]]) -> TestReport:
        async with self._locks.setdefault(key, asyncio.Lock()):
            report = await self._store.load(key)
            if report is None:
                report = await make()
                await self._store.save(key, report)
            return report

    async def _key(self, row: TaskRow, tree: str, selection: TestSelection) -> str:
        """Return a hash of all inputs of a report."""
        known = self._contents.get(row.task.id)
        if known is None or known[0] is not row:  # an edited row keeps its id
            known = self._contents[row.task.id] = row, await asyncio.to_thread(row_content, row)
        added = [(path, hashlib.sha256(data).hexdigest()) for path, data in sorted(selection.added.items())]
        limits = (self._timeout_s, *self._sandbox.limits().values())
        parts = (known[1], tree, selection.files, added, selection.signs, limits, selection.script)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


async def _printed(row: TaskRow, evidence: Evidence) -> dict[str, str]:
    """Return the statuses that the row's parser reads from the log; empty if parsing exceeds limits."""
    try:
        return await run_isolated(partial(statuses_of, row, swebench.with_newlines(evidence.shown)))
    except HostileInputError:
        return {}


async def _prepared(box: Sandbox, visible: TaskRow) -> str:
    """Prepare a sandbox as for agents; return ``PATH`` with the project's own Python, empty without one."""
    answer = visible.answer
    environment = await prepare_for_agent(
        box, setup_patch=answer.setup_patch, hidden_paths=answer.hidden_paths
    )
    return environment.get("PATH", "")


def _guarded(files: Collection[str]) -> tuple[str, ...]:
    """Return names of tests that make grading guard the files and test configuration above them."""
    return tuple(f"{file}::" for file in files)
