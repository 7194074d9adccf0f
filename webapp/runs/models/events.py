"""The append-only event log; every other table of a run is a projection, see ``ingestion.services``."""

from __future__ import annotations

from typing import Any

from django.db import models

from webapp.runs.models.runs import Run


class Event(models.Model):
    """One record of a run, stored as it was posted. Filled with COPY, hence the composite key."""

    pk = models.CompositePrimaryKey("run_id", "seq")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="events", db_index=False)
    seq = models.BigIntegerField()
    epoch = models.IntegerField()
    type = models.CharField(max_length=32)
    time = models.DateTimeField()
    payload: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField()
    """The whole event, ``seq``, ``epoch``, ``type`` and ``time`` included; tokens are in ``TokenBlob``."""

    class Meta:
        ordering = ["run_id", "seq"]
        indexes = [
            models.Index(
                fields=["run", "type", "seq"],
                condition=~models.Q(type="step_finished"),
                name="event_without_steps",
            ),
        ]

    def __str__(self) -> str:
        return f"event {self.seq} of run {self.run_id}: {self.type}"
