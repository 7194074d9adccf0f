"""Storage of inference engine reports: the newest report, and the first report of each interval."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from engine.events.engines import EnginesReported
from webapp.core.services.cleaning import without_nul
from webapp.rollouts.services.rows import moment
from webapp.runs.models.engines import EngineReport, EngineSample
from webapp.runs.models.runs import Run

INTERVAL_S = 20
"""Length of the intervals of the history, seconds."""


class EngineStore:
    """Buffer for the engine reports of one locked run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._newest: EnginesReported | None = None
        self._samples: dict[int, EnginesReported] = {}
        self._wrote = False

    def reported(self, event: EnginesReported) -> None:
        """Buffer a report."""
        self._newest = event
        self._samples.setdefault(int(event.time // INTERVAL_S), event)

    def flush(self) -> None:
        """Write the buffer with one statement for the history and one for the newest report."""
        samples, self._samples = self._samples, {}
        newest, self._newest = self._newest, None
        if newest is None:
            return
        self._wrote = True
        EngineSample.objects.bulk_create(
            [
                EngineSample(run=self._run, interval=interval, **_fields(event))
                for interval, event in samples.items()
            ],
            ignore_conflicts=True,
        )
        EngineReport.objects.update_or_create(
            run=self._run, defaults=_fields(newest) | {"queued": newest.queued}
        )

    def begin(self) -> None:
        """Delete the newest report of the previous attempt; the history is kept."""
        self.flush()
        if self._run.last_seq or self._wrote:
            EngineReport.objects.filter(run=self._run).delete()


def _fields(event: EnginesReported) -> dict[str, datetime | list[dict[str, Any]]]:
    return {
        "time": moment(event.time),
        "replicas": without_nul([replica.model_dump(mode="json") for replica in event.replicas]),
    }
