"""Reads of the logs that engines write into their run folders."""

from __future__ import annotations

import os
from dataclasses import dataclass

from engine.redaction import redact
from webapp.runs.selectors.folders import run_folder

TAIL_BYTES = 64 * 1024
"""Size of the part of a log that is shown, bytes."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """The end of a log."""

    text: str
    """Whole lines, without secrets."""
    size: int
    """Size of the log, bytes."""
    shortened: bool
    """Whether earlier lines were left out."""


def log_tail(run_id: int, *, most: int = TAIL_BYTES) -> LogTail:
    """Return the last ``most`` bytes of a run's log; empty before its engine has written any.

    The log is the same file for every launcher: nodes of a cluster share the run folder.
    """
    path = run_folder(run_id) / "engine.log"
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            raw = file.read(most)
    except OSError:
        return LogTail("", 0, shortened=False)
    shortened = size > most
    if shortened:
        raw = raw.partition(b"\n")[2]
    text = raw.decode(errors="replace").replace("\0", "")
    return LogTail(redact(text), size, shortened)
