"""Process that writes a run's events on time: ``python -m bench.live.player SETTINGS`` (JSON).

The engine's own spool and shipper send the events to the server. Writes a log: every event with its number
and time, every post with its start, its end and the last event that the server confirmed, and the CPU time.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from bench.live.plan import schedule
from engine.events.delivery.shipper import Cursor, Shipper
from engine.events.delivery.spool import SpoolLine, SpoolSink
from engine.events.types import RunPaused

DRAIN_S = 30.0


class TimedShipper(Shipper):
    """Shipper that records when each batch was posted and confirmed."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        self.began = 0.0
        self.posts: list[tuple[float, float, int]] = []
        """Start, end and last confirmed event of every post."""
        super().__init__(*args, **keywords)

    def _ship(self, batch: list[SpoolLine]) -> None:
        self.began = time.time()
        super()._ship(batch)

    def _save(self, cursor: Cursor) -> None:
        self.posts.append((self.began, time.time(), cursor.seq))
        super()._save(cursor)


def play(settings: dict[str, Any]) -> dict[str, Any]:
    """Write the events from ``settings["start"]`` (Unix time) on; return the log."""
    folder = Path(settings["folder"])
    folder.mkdir()
    plan = schedule(settings["iterations"], period_s=settings["period_s"])
    sink = SpoolSink(folder, epoch=1)
    shipper = TimedShipper(sink, url=settings["url"], token=settings["token"], on_fenced=print)
    time.sleep(max(0.0, settings["start"] - time.time()))
    before = time.process_time()
    events = []
    for planned in plan:
        time.sleep(max(0.0, settings["start"] + planned.at - time.time()))
        seq = sink.emit(planned.type, **planned.fields)
        events.append({"seq": seq, "time": time.time(), **_facts(planned.fields, planned.type.__name__)})
    seq = sink.emit(RunPaused)
    events.append({"seq": seq, "time": time.time(), "type": "run_paused", "ref": None})
    if not shipper.drain(DRAIN_S):
        raise SystemExit(f"the events were not confirmed within {DRAIN_S:.0f} s: {shipper.failure}")
    cpu = time.process_time() - before
    shipper.close()
    sink.close()
    return {"events": events, "posts": shipper.posts, "cpu_s": cpu}


def _facts(fields: dict[str, Any], name: str) -> dict[str, Any]:
    ref = fields.get("ref")
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
    return {
        "type": words,
        "ref": ref and [ref["iteration"], int(ref["task_id"][8:], 16), ref["index"]],
    }


def main() -> None:
    """Play and store the log."""
    settings = json.loads(sys.argv[1])
    Path(settings["log"]).write_text(json.dumps(play(settings)))


if __name__ == "__main__":
    main()
