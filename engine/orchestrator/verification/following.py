"""Source runs of a verification: read once, or followed until they end.

A followed run has ended when its newest attempt wrote a terminal event, or when no process has held its
folder for ``PATIENCE_S``: a killed run writes no such event, and a relaunched one is held again by then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence

from engine.errors import ConfigError
from engine.events.delivery.spool import SPOOL_NAME, is_held
from engine.orchestrator.context import RunContext
from engine.orchestrator.verification.stored_trajectories import StoredTrajectories, open_sources

POLL_S = 2.0
"""Interval between checks of unfinished runs, seconds."""
READING_SHARE = 0.05
"""Maximum share of the time spent on reading followed runs again."""
PATIENCE_S = 300.0
"""Time without a process holding its folder after which a followed run counts as ended, seconds."""


class FollowedRuns:
    """Trajectories, as read so far, of the runs named by a setting.

    Args:
        run: the run that reads them.
        names: folders of the other runs.
        setting: name of the setting, for errors.
        phases: phases to read; empty reads all.
        follow: whether unfinished runs are read again.
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
        """Unfinished runs → size of the spool when it was last read, bytes."""
        self._unheld_since: dict[str, float] = {}
        """Runs that no process held at the last check → time since which that is known."""
        self._sources: dict[str, StoredTrajectories] = {}
        self._took_s = 0.0

    @property
    def sources(self) -> Collection[StoredTrajectories]:
        """Return the runs in the order of the setting."""
        return self._sources.values()

    @property
    def going(self) -> tuple[str, ...]:
        """Return the names of the unfinished runs, which are read again."""
        return tuple(self._open) if self._follow else ()

    def read(self) -> None:
        """Read the runs' trajectories.

        Raises:
            ConfigError: a run does not exist, or has ended without a graded trajectory in these phases.
        """
        for name in tuple(self._open):
            self._read(name)

    async def wait_for_changes(self) -> None:
        """Wait until unfinished runs have written more or have ended, and read them again.

        A run that can no longer be read counts as ended, with an alert; trajectories read before are kept.

        Raises:
            RunStopped, FencedError, DeliveryError: the attempt must end.
        """
        pause_s = self._took_s * (1 / READING_SHARE - 1)
        started = time.monotonic()
        while time.monotonic() - started < pause_s or not self._has_changes():
            await self._run.safe_point()
            await asyncio.sleep(POLL_S)
        started = time.monotonic()
        await asyncio.to_thread(self._read_again)
        self._took_s = time.monotonic() - started

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
        self._run.alert("warning", "verifier_source_lost", f"run {name} is no longer followed: {reason}")

    def _has_changes(self) -> bool:
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
