"""Paths of run folders."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings


def run_folder(run_id: int) -> Path:
    """Return the path of a run's folder; it need not exist."""
    return Path(settings.TRAINYARD_HOME) / "runs" / str(run_id)
