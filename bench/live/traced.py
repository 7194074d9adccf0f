"""The product's ASGI application, with a log of every rendering of a live page (``BENCH_LIVE_LOG``)."""

from __future__ import annotations

import functools
import json
import os
import time
from pathlib import Path

from webapp.asgi import application
from webapp.live import fragments, hub
from webapp.live.fragments import SharedReads, Snapshot, Subscription

__all__ = ["application"]
_render = fragments.snapshot
_log = Path(os.environ["BENCH_LIVE_LOG"]).open("a", buffering=1)  # noqa: SIM115


@functools.wraps(_render)
def _timed(subscription: Subscription, shared: SharedReads) -> Snapshot:
    began, cpu = time.time(), time.thread_time()
    found = _render(subscription, shared)
    key = [subscription.page, list(subscription.target), dict(subscription.params), subscription.role]
    spent = {"began": began, "ended": time.time(), "cpu_s": time.thread_time() - cpu}
    _log.write(json.dumps({"key": key, "seq": found.seq, **spent}) + "\n")
    return found


setattr(hub, "snapshot", _timed)  # noqa: B010  (mypy: not exported)
