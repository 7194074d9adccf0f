"""Runs that a verification reads: once, or again and again for as long as they go on.

A followed run is over when its newest attempt has ended by itself, or when no process has held its folder for
``PATIENCE_S``: a run that was killed for good writes no end, one that is relaunched is held again by then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence

from engine.errors import ConfigError
from engine.events.spool import SPOOL_NAME, is_held
from engine.orchestrator.context import RunContext
from engine.orchestrator.verification.stored_trajectories import StoredTrajectories, open_sources

POLL_S = 2.0
"""Time between looks at runs that go on, seconds."""
READING_SHARE = 0.05
"""Maximum share of the time that goes into looking for what is new."""
PATIENCE_S = 300.0
"""Time for which a followed run may be held by no process until it is over, seconds."""


class FollowedRuns:
    """The trajectories of the runs that a setting names, as far as they were read.

    Args:
        run: the run that reads them.
        names: folders of the other runs.
        setting: name of the setting, for errors.
        phases: phases to read; empty reads all.
        follow: whether runs that go on are read again.
    """

    def __init__(
        self,
        run: RunContext,
        names: Sequence[str],
        *,
        setting: str,
        phases: Collection[str],
        follow: bool,
    ) -> None:
        self._run = run
        self._setting = setting
        self._phases = phases
        self._follow = follow
        self._open = dict.fromkeys(names, 0)
        """Runs that are not over → size of the spool when it was last read, bytes."""
        self._unheld_since: dict[str, float] = {}
        """Runs that no process held when they were last looked at → when that was first seen."""
        self._sources: dict[str, StoredTrajectories] = {}
        self._took_s = 0.0

    @property
    def sources(self) -> Collection[StoredTrajectories]:
        """Return the runs in the order of the setting."""
        return self._sources.values()

    @property
    def going(self) -> tuple[str, ...]:
        """Return the names of the runs that are read again."""
        return tuple(self._open) if self._follow else ()

    def read(self) -> None:
        """Read what the runs have written.

        Raises:
            ConfigError: a run is not there, or has ended without a graded trajectory in these phases.
        """
        for name in tuple(self._open):
            self._read(name)

    async def news(self) -> None:
        """Return when runs that go on have written more, or are over; what is new has been read.

        A run that cannot be read any more is over, with an alert: what was read of it stays.

        Raises:
            RunStopped, FencedError, DeliveryError: the attempt must end.
        """
        rest = self._took_s * (1 / READING_SHARE - 1)
        began = time.monotonic()
        while time.monotonic() - began < rest or not self._has_news():
            await self._run.safe_point()
            await asyncio.sleep(POLL_S)
        began = time.monotonic()
        await asyncio.to_thread(self._read_again)
        self._took_s = time.monotonic() - began

    def _read(self, name: str) -> None:
        size = self._size(name)
        (source,) = open_sources(
            self._run, [name], setting=self._setting, phases=self._phases, unfinished=self._follow
        )
        self._sources[name] = source
        self._open[name] = size
        if source.has_ended:
            del self._open[name]

    def _read_again(self) -> None:
        for name in tuple(self._open):
            try:
                self._read(name)
            except ConfigError as error:
                self._give_up(name, str(error))
            else:
                if name in self._open and self._is_lost(name):
                    self._give_up(name, f"no process has performed it for {PATIENCE_S:.0f} s")

    def _give_up(self, name: str, reason: str) -> None:
        del self._open[name]
        self._run.alert("warning", "verifier_source_lost", f"run {name} is not followed any more: {reason}")

    def _has_news(self) -> bool:
        for name in self._open:
            if is_held(self._run.run_dir.parent / name):
                self._unheld_since.pop(name, None)
            else:
                self._unheld_since.setdefault(name, time.monotonic())
        return any(self._size(name) != size or self._is_lost(name) for name, size in self._open.items())

    def _is_lost(self, name: str) -> bool:
        now = time.monotonic()
        return now - self._unheld_since.get(name, now) > PATIENCE_S

    def _size(self, name: str) -> int:
        try:
            return (self._run.run_dir.parent / name / SPOOL_NAME).stat().st_size
        except OSError:
            return 0
