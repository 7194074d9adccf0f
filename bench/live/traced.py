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
    snapshot = _render(subscription, shared)
    key = [subscription.page, list(subscription.target), dict(subscription.params), subscription.role]
    times = {"began": began, "ended": time.time(), "cpu_s": time.thread_time() - cpu}
    _log.write(json.dumps({"key": key, "seq": snapshot.seq, **times}) + "\n")
    return snapshot


setattr(hub, "snapshot", _timed)  # noqa: B010  (mypy: not exported)
