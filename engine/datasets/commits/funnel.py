"""Funnel of a curation from commits: stages, reasons for lost commits, and the reports about them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.datasets.commits.repositories import Repository
from engine.errors import DatasetError
from engine.events.curation import CommitFunnel, FunnelStage, LostCommit
from engine.redaction import redact
from engine.tools import printable

STAGES = (
    ("commits", frozenset[str]()),
    ("one change", frozenset({"merge", "first_commit", "revert", "cherry_pick", "empty"})),
    ("has code", frozenset({"no_code", "native_code"})),
    ("small enough", frozenset({"too_many_files", "too_large", "unreadable"})),
    ("has tests", frozenset({"no_tests", "not_written"})),
    ("real change", frozenset({"no_syntax", "no_real_change"})),
    ("new", frozenset({"duplicate", "contaminated"})),
    ("tried", frozenset({"not_tried", "waiting"})),
    (
        "builds",
        frozenset({"tree", "python_version", "does_not_build", "sandbox", "machine", "index", "error"}),
    ),
    ("tests run", frozenset({"no_tests_run", "timeout", "runner_changed", "written_do_not_run"})),
    (
        "tests differ",
        frozenset(
            {"collection", "no_difference", "fails_after", "written_pass_before", "written_fail_after"}
        ),
    ),
    ("stable", frozenset({"unstable"})),
    ("stated", frozenset({"statement", "leaks", "unclear"})),
    ("wanted", frozenset({"not_wanted"})),
)
"""Stages of the funnel, each with the reasons for which commits do not reach it."""
_EXAMPLES = 3
"""Commits that are named for each reason."""
_MOST_REASON = 500
"""Length of the reason why a repository is not used, characters."""
_REPORT_EVERY_S = 1.0


@dataclass(slots=True)
class Funnel:
    """Commits of a curation by the reason for which they became no task."""

    wanted: int
    """Maximum number of tasks."""
    total: int = 0
    """Commits of all repositories."""
    candidates: int = 0
    """Commits that can become tasks by their change alone."""
    tried: int = 0
    proven: int = 0
    """Tried commits with tests and a statement."""
    trial_seconds: float = 0.0
    is_live: bool = False
    """Whether new trials have begun. Until then kept ones are read, which an earlier attempt has reported."""
    is_over: bool = False
    """Whether no further commit will be tried."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Repository that cannot be used → reason."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Folder of an image or environment → its size, bytes."""
    written: Counter[str] = field(default_factory=Counter)
    """Stage → commits that reached it with tests by a model."""
    _lost: Counter[str] = field(default_factory=Counter)
    _examples: dict[str, list[tuple[int, LostCommit]]] = field(default_factory=dict)

    @property
    def tasks(self) -> int:
        """Return the number of tasks."""
        return min(self.proven, self.wanted)

    @property
    def decided(self) -> int:
        """Return the number of candidates that were tried or will not be."""
        return self.candidates if self.is_over else self.tried

    def lose(
        self, reason: str, repository: Repository, sha: str, detail: str = "", *, position: int = 0
    ) -> None:
        """Count a commit that became no task; the commits with the smallest positions are the examples."""
        self._lost[reason] += 1
        example = LostCommit(
            repository=printable(repository.spec[:300]),
            commit=sha[:64],
            detail=redact(printable(detail))[-500:].strip(),
        )
        named = self._examples.setdefault(reason, [])
        named.append((position, example))
        named.sort(key=lambda pair: pair[0])
        del named[_EXAMPLES:]

    def stages(self) -> list[FunnelStage]:
        """Return each stage with the commits that reached it and those lost on the way, by reason."""
        lost = self._lost + Counter(
            {
                "not_tried" if self.is_over else "waiting": self.candidates - self.tried,
                "not_wanted": self.proven - self.tasks,
            }
        )
        left, stages = self.total, []
        for stage, reasons in STAGES:
            here = {reason: lost[reason] for reason in sorted(reasons) if lost[reason]}
            left -= sum(here.values())
            stages.append(FunnelStage(stage=stage, commits=left, lost=here, written=self.written[stage]))
        return stages

    def snapshot(self) -> CommitFunnel:
        """Return the current state."""
        return CommitFunnel(
            funnel=self.stages(),
            examples={reason: [example for _, example in named] for reason, named in self._examples.items()},
            skipped={spec: reason[:_MOST_REASON] for spec, reason in self.skipped.items()},
            tasks=self.tasks,
            trial_seconds=round(self.trial_seconds, 1),
            disk_bytes=sum(self.sizes.values()),
        )


class Progress(Protocol):
    """Receiver of reports about a curation."""

    def __call__(self, message: str, done: int, total: int, /, *, funnel: CommitFunnel | None = None) -> None:
        """Report a phase, the candidates decided, and all candidates (0: not known yet)."""


@asynccontextmanager
async def reporting(funnel: Funnel, progress: Progress, message: str) -> AsyncIterator[None]:
    """Report a live funnel once a second while it changes; raise an error of a report at the end."""

    async def repeat() -> None:
        last: CommitFunnel | None = None
        while True:
            await asyncio.sleep(_REPORT_EVERY_S)
            if funnel.is_live and (state := funnel.snapshot()) != last:
                progress(message, funnel.decided, funnel.candidates, funnel=state)
                last = state

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.result()


class NoTasksError(DatasetError):
    """No commit became a task.

    Attributes:
        record: what the provenance of a dataset has about its making.
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        reasons = [item for stage in record["funnel"] for item in stage["lost"].items()]
        lost = ", ".join(f"{reason} {number}" for reason, number in reasons)
        super().__init__(f"no commit of {record['funnel'][0]['commits']} became a task: {lost}")
        self.record = record
