"""Trials of candidate faults: the tests with and without the fault, in one fresh sandbox."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from engine.config.curation import CurationConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.cached_model import CachedModel
from engine.datasets.curation.baseline import sandbox_spec
from engine.datasets.curation.candidates import Candidate
from engine.datasets.curation.injected import WORKDIR
from engine.datasets.curation.measurements import NOT_KEPT, Measurements, Trial
from engine.datasets.funnel import Funnel, Progress
from engine.errors import HostError, SandboxError
from engine.sandbox.base import SandboxBackend
from engine.testing.testrun import driver_command, run_tests
from engine.types import TestOutcome

HOST_ATTEMPTS = 3
"""Attempts per candidate when this machine fails, and consecutive failed candidates that end a curation."""
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Curation:
    """Data shared by all steps of one curation."""

    config: CurationConfig
    home: Path
    backend: SandboxBackend
    sandbox: SandboxConfig
    progress: Progress
    seed: int
    funnel: Funnel
    writer: CachedModel | None = None
    """Model that writes the faults; without one they are injected."""
    kept: dict[str, Measurements] = field(default_factory=dict)
    """Intact image → its measurements."""
    host_failures: int = 0
    """Candidates given up in a row because this machine failed."""

    def amounts(self) -> tuple[int, int]:
        """Return the number of tasks so far, and of those wanted."""
        return self.funnel.tasks, self.config.train_tasks + self.config.heldout_tasks

    def say(self, message: str) -> None:
        """Report the current activity, with the number of tasks so far once new trials have begun."""
        self.progress(message, *(self.amounts() if self.funnel.is_live else (0, 0)))

    def kept_trial(self, candidate: Candidate) -> Trial | None:
        """Return the trial of an earlier curation; None if there is none."""
        return self.kept[candidate.baseline.image].trial(candidate)


async def try_candidate(run: Curation, candidate: Candidate) -> Trial:
    """Return the kept or new trial of a candidate.

    Raises:
        HostError: this machine failed several candidates in a row.
    """
    if (kept := run.kept_trial(candidate)) is not None:
        return kept
    run.funnel.is_live = True
    started = time.monotonic()
    try:
        trial = await despite_host(run, partial(_try, run, candidate))
    except SandboxError as error:
        if isinstance(error, HostError):
            raise
        # A mutant may exhaust its sandbox; it makes a poor task, not a failed curation.
        trial = Trial(problem="sandbox", detail=str(error))
    if isinstance(trial, HostError):
        trial = Trial(problem="machine", detail=str(trial))
    trial = replace(trial, seconds=round(time.monotonic() - started, 2))
    if trial.problem not in NOT_KEPT:
        run.kept[candidate.baseline.image].keep_trial(candidate, trial)
    return trial


async def despite_host(run: Curation, action: Callable[[], Awaitable[T]]) -> T | HostError:
    """Run an action on a candidate with retries; return the error if this machine fails every time.

    Raises:
        HostError: this machine failed several candidates in a row.
    """
    for attempt in range(1, HOST_ATTEMPTS + 1):
        try:
            result = await action()
        except HostError as error:
            if attempt < HOST_ATTEMPTS:
                continue
            run.host_failures += 1
            if (count := run.host_failures) >= HOST_ATTEMPTS:
                raise HostError(f"this machine failed {count} candidates in a row: {error}") from error
            return error
        run.host_failures = 0
        return result
    raise AssertionError("the last attempt returns or raises")


async def _try(run: Curation, candidate: Candidate) -> Trial:
    """Run the tests with and without the fault in one fresh sandbox.

    Raises:
        SandboxError: the sandbox failed.
    """
    baseline = candidate.baseline
    command = driver_command(candidate.tests, baseline.source.roots)
    timeout = 10.0 + 20 * sum(baseline.seconds[test] for test in candidate.tests)
    spec = sandbox_spec(
        f"local:{baseline.image}",
        run.sandbox,
        run_id="curate",
        name=candidate.fault.function,
        lifetime_s=timeout * (run.config.stability_runs + 2) + 30,
    )
    path = f"{WORKDIR}/{candidate.path}"
    async with run.backend.open(spec) as box:
        await box.write_file(path, candidate.mutated.encode())
        first = await run_tests(box, command, timeout_s=timeout)
        if first.problem:
            return Trial(problem="no_report", detail=first.problem)
        outcomes = first.outcomes(candidate.tests)
        failing = tuple(test for test, outcome in outcomes.items() if outcome is not TestOutcome.PASSED)
        reported = {TestOutcome.PASSED, TestOutcome.FAILED, TestOutcome.ERROR}
        if not failing or not reported.issuperset(outcomes.values()):
            return Trial(problem="odd_outcome" if failing else "unnoticed")
        for _ in range(run.config.stability_runs - 1):
            repeated = await run_tests(box, command, timeout_s=timeout)
            if repeated.problem:
                return Trial(problem="no_report", detail=repeated.problem)
            if repeated.outcomes(candidate.tests) != outcomes:
                return Trial(problem="unstable")
        await box.write_file(path, candidate.source.encode())
        intact = await run_tests(box, command, timeout_s=timeout)
        if intact.problem:
            return Trial(problem="no_report", detail=intact.problem)
        if set(intact.outcomes(candidate.tests).values()) != {TestOutcome.PASSED}:
            return Trial(problem="not_mended")
    return Trial(failing, first.case(failing[0]).exception)
