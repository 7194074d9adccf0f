"""Inference engines of runs: the newest report, and a thinned history."""

from __future__ import annotations

from typing import Any

from django.db import models

from webapp.runs.models.runs import Run


class EngineReport(models.Model):
    """The newest report of an attempt's engines (``engine.events.engines.EnginesReported``)."""

    run = models.OneToOneField(Run, on_delete=models.CASCADE, primary_key=True, related_name="engine_report")
    time = models.DateTimeField()
    replicas: models.JSONField[list[dict[str, Any]], list[dict[str, Any]]] = models.JSONField(default=list)
    """``EngineRecord`` of each engine, as JSON."""
    queued = models.IntegerField(default=0)
    """New trajectories that wait for room in a KV cache."""

    def __str__(self) -> str:
        return f"engines of run {self.run_id}"


class EngineSample(models.Model):
    """The first report within one interval of ``webapp.ingestion.services.engines.INTERVAL_S``."""

    pk = models.CompositePrimaryKey("run_id", "interval")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="engine_samples", db_index=False)
    interval = models.BigIntegerField()
    """Unix time divided by the interval's length, rounded down."""
    time = models.DateTimeField()
    replicas: models.JSONField[list[dict[str, Any]], list[dict[str, Any]]] = models.JSONField(default=list)

    class Meta:
        ordering = ["run_id", "interval"]

    def __str__(self) -> str:
        return f"engines of run {self.run_id} at {self.time}"
