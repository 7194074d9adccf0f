"""Run folder of an engine, written before its start and read after its end."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

from django.conf import settings

from engine.files import atomic_write
from engine.redaction import redact
from webapp.endpoints.services import places
from webapp.runs.selectors.folders import run_folder
from webapp.runs.services import attempts, learning
from webapp.runs.services.attempts import Claim

SPOOL = "events.jsonl"
_STRUCTURE = ("event", "level", "timestamp", "exception")
"""Fields common to all records of a structured log."""


def prepare(claim: Claim) -> Path:
    """Write ``config.json``, ``launch.json`` (readable by the owner only) and trajectories to train on.

    Other files are kept.

    Raises:
        SupersededError: the attempt was replaced or stopped during the preparation.
    """
    folder = run_folder(claim.run_id)
    folder.mkdir(parents=True, exist_ok=True)
    working = partial(attempts.preparing, run_id=claim.run_id, epoch=claim.epoch)
    learning.provide(claim.config, folder, working=working)
    atomic_write(folder / "config.json", json.dumps(claim.config, indent=1) + "\n")
    launch = {
        "run_id": str(claim.run_id),
        "epoch": claim.epoch,
        "ingest_url": settings.TRAINYARD_WEB_URL,
        "token": claim.token,
        "home": str(settings.TRAINYARD_HOME),
        "acked_seq": claim.acked_seq,
        "allowed": places.allowed().model_dump(mode="json"),
    }
    atomic_write(folder / "launch.json", json.dumps(launch), mode=0o600)
    return folder


def last_words(run_id: int) -> str:
    """Return the last line of the engine's log, shown below the reason of a failed run."""
    try:
        with (run_folder(run_id) / "engine.log").open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - 4096))
            lines = log.read().decode(errors="replace").replace("\0", "").splitlines()
    except OSError:
        return ""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return redact(_in_words(last))[:500]


def _in_words(line: str) -> str:
    """Return a log line for people; of a structured record its event, fields and exception."""
    try:
        record = json.loads(line)
    except ValueError:
        return line
    if not isinstance(record, dict) or "event" not in record:
        return line
    parts = [f"{name} {value}" for name, value in record.items() if name not in _STRUCTURE]
    if exception := str(record.get("exception", "")).strip():
        parts.append(exception.splitlines()[-1])
    event = str(record["event"]).replace("_", " ")
    return f"{event}: {', '.join(parts)}" if parts else event


def spool_written_at(run_id: int) -> float:
    """Return the time of the last write to the spool, Unix seconds; 0 if it does not exist."""
    try:
        return (run_folder(run_id) / SPOOL).stat().st_mtime
    except OSError:
        return 0.0
