"""Funnel of a curation: stages, reasons for lost items, and the reports about them.

Items are commits, faults or weak tasks: whatever the first stage is named after.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from engine.errors import DatasetError, ImageError
from engine.events.curation import CurationFunnel, FunnelStage, LostItem
from engine.processes.disk import folder_bytes
from engine.redaction import redact
from engine.sandbox.local.images import load_image
from engine.tools import printable

Stages = tuple[tuple[str, frozenset[str]], ...]
"""Stages of a funnel, each with the reasons for which items do not reach it."""
_EXAMPLES = 3
"""Items that are named for each reason."""
_MOST_NAME, _MOST_DETAIL, _MOST_REASON = 300, 500, 500
"""Lengths of an item's name, its detail, and the reason why a source is not used, characters."""
_REPORT_EVERY_S = 1.0


@dataclass(slots=True, kw_only=True)
class Funnel:
    """Items of a curation by the reason for which they became no task."""

    stages: Stages
    total: int = 0
    """All items."""
    candidates: int = 0
    """Items that can be tried."""
    tried: int = 0
    proven: int = 0
    """Tried items that can be part of a task."""
    tasks: int = 0
    per_task: int = 1
    """Items of a task."""
    undecided: Counter[str] = field(default_factory=Counter)
    """Reason → tried items that are not lost yet, but did not reach its stage."""
    trial_seconds: float = 0.0
    is_live: bool = False
    """Whether new trials have begun. Until then kept ones are read, which an earlier attempt has reported."""
    is_over: bool = False
    """Whether no further item will be tried."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Repository or source that cannot be used → reason."""
    written: Counter[str] = field(default_factory=Counter)
    """Stage → commits that reached it with tests by a model."""
    _sizes: dict[str, int] = field(default_factory=dict)
    """Folder of an image or environment → its size, bytes."""
    _lost: Counter[str] = field(default_factory=Counter)
    _examples: dict[str, list[tuple[int, LostItem]]] = field(default_factory=dict)

    def lose(self, reason: str, item: str, *, origin: str = "", detail: str = "", position: int = 0) -> None:
        """Count a lost item; the items with the smallest positions are the examples."""
        self._lost[reason] += 1
        named = self._examples.setdefault(reason, [])
        if len(named) == _EXAMPLES and position >= named[-1][0]:
            return
        example = LostItem(
            origin=printable(origin[:_MOST_NAME]),
            item=printable(item[:_MOST_NAME]),
            detail=redact(printable(detail))[-_MOST_DETAIL:].strip(),
        )
        named.append((position, example))
        named.sort(key=lambda pair: pair[0])
        del named[_EXAMPLES:]

    def measure(self, home: Path, image: str) -> None:
        """Add the disk space of a task's image (its name without ``local:``) and environment."""
        try:
            loaded = load_image(home, image)
        except ImageError:
            return  # its environment was removed: grading names it
        for folder in (str(loaded.rootfs.parent), *loaded.binds.values()):
            if folder not in self._sizes:
                self._sizes[folder] = folder_bytes(Path(folder))

    def snapshot(self) -> CurationFunnel:
        """Return the current state."""
        return CurationFunnel(
            funnel=self._counts(),
            examples={reason: [example for _, example in named] for reason, named in self._examples.items()},
            skipped={spec: reason[:_MOST_REASON] for spec, reason in self.skipped.items()},
            tasks=self.tasks,
            trial_seconds=round(self.trial_seconds, 1),
            disk_bytes=sum(self._sizes.values()),
        )

    def _counts(self) -> list[FunnelStage]:
        """Return each stage with the items that reached it and those lost on the way, by reason."""
        lost = self._lost + self.undecided
        lost["not_tried" if self.is_over else "waiting"] += self.candidates - self.tried
        lost["not_wanted"] += self.proven - self.tasks * self.per_task
        left, stages = self.total, []
        for stage, reasons in self.stages:
            here = {reason: lost[reason] for reason in sorted(reasons) if lost[reason]}
            left -= sum(here.values())
            stages.append(FunnelStage(stage=stage, reached=left, lost=here, written=self.written[stage]))
        return stages


class Progress(Protocol):
    """Receiver of reports about a curation."""

    def __call__(
        self, message: str, done: int, total: int, /, *, funnel: CurationFunnel | None = None
    ) -> None:
        """Report a phase with the amount of its work that is done, and all of it (0: not known yet)."""


@asynccontextmanager
async def reporting(
    funnel: Funnel, progress: Progress, message: str, amounts: Callable[[], tuple[int, int]]
) -> AsyncIterator[None]:
    """Report a live funnel once a second while it changes; raise an error of a report at the end.

    Args:
        funnel: the funnel.
        progress: receives the reports.
        message: the phase.
        amounts: returns the work that is done, and all of it.
    """

    async def repeat() -> None:
        last: CurationFunnel | None = None
        while True:
            await asyncio.sleep(_REPORT_EVERY_S)
            if funnel.is_live and (state := funnel.snapshot()) != last:
                progress(message, *amounts(), funnel=state)
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
    """No item became a task.

    Attributes:
        record: what the provenance of a dataset has about its making.
    """

    def __init__(self, problem: str, record: Mapping[str, Any], *, detail: str = "") -> None:
        reasons = [item for stage in record["funnel"] for item in stage["lost"].items()]
        lost = ", ".join(f"{reason} {number}" for reason, number in reasons)
        super().__init__("; ".join(filter(None, (f"{problem}: {lost}", detail))))
        self.record = record
