"""Latency of the stages between an event and its display in a tab, from the logs of a round."""

from __future__ import annotations

import bisect
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import parse_qsl

from bench.live.plan import PERIOD_S, WATCHED_FROM_S, tabs

Log = dict[str, Any]
SETTLE_S = 3.0
"""Events within this time before a tab moves to another page are excluded, as it may not receive them."""


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Return count, median, 95th percentile and maximum, milliseconds."""
    values = sorted(1000 * value for value in seconds)
    if not values:
        return {"n": 0}
    at = min(len(values) - 1, round(0.95 * len(values)))
    return {
        "n": len(values), "p50": round(statistics.median(values)), "p95": round(values[at]),
        "max": round(values[-1]),
    }  # fmt: skip


def stages(played: Log, logs: Iterable[Log], renderings: Iterable[Log], settings: Log) -> Log:
    """Return the latency of every stage, over all pairs of a tab and an event that changes it.

    ``posted``: the event was sent; ``stored``: the server confirmed it; ``rendered``: the tab's page was
    rendered with it; ``frame``: the tab received the update; ``changed`` and ``painted``: the page in
    Chromium was changed and painted.
    """
    rendered = defaultdict(list)
    for entry in renderings:
        rendered[_key(*entry["key"])].append((entry["seq"], entry["ended"]))
    latencies: dict[str, list[float]] = defaultdict(list)
    missed = 0
    opened = tabs(settings["tabs"])
    for log in logs:
        tab = opened[log["tab"]]
        for event, iteration in _shown(played["events"], tab, settings):
            frame = _first(log["frames"], event["seq"], iteration if tab.target(0) else None)
            if frame is None:
                missed += 1
                continue
            key = _key(tab.page, tab.target(iteration), dict(parse_qsl(tab.query.lstrip("?"))), tab.role)
            ended = [end for seq, end in rendered[key] if seq >= event["seq"]]
            latencies["rendered"].append(min(ended, default=frame["time"]) - event["time"])
            kind = "changed" if log["tab"] < settings["browsers"] else "frame"
            latencies[kind].append(frame["time"] - event["time"])
            latencies[f"{kind}, {tab.page}"].append(frame["time"] - event["time"])
            if "painted" in frame:
                latencies["painted"].append(frame["painted"] - event["time"])
    posts = played["posts"]
    acked = [seq for _, _, seq in posts]
    for event in played["events"]:
        began, ended, _ = posts[bisect.bisect_left(acked, event["seq"])]
        latencies["posted"].append(began - event["time"])
        latencies["stored"].append(ended - event["time"])
    return {"missed": missed, "ms": {name: summary(latencies[name]) for name in sorted(latencies)}}


def _key(page: str, target: Sequence[str], params: Log, role: str) -> tuple[Any, ...]:
    return (page, tuple(target), tuple(sorted(params.items())), str(role))


def _shown(events: list[Log], tab: Any, settings: Log) -> Iterable[tuple[Log, int]]:
    """Yield the events that change a tab, with the iteration that it shows at the time."""
    for event in events:
        since = event["time"] - settings["start"] - WATCHED_FROM_S
        iteration, into = divmod(since, PERIOD_S)
        last = iteration + 1 >= settings["iterations"]
        if since < 1.0 or (tab.target(0) and (into < 1.0 or (not last and into > PERIOD_S - SETTLE_S))):
            continue
        iteration = min(int(iteration), settings["iterations"] - 1)
        if tab.shows(event, iteration):
            yield event, iteration


def _first(frames: list[Log], seq: int, iteration: int | None) -> Log | None:
    candidates = [f for f in frames if f["seq"] >= seq and iteration in (None, f["iteration"])]
    return min(candidates, key=lambda frame: float(frame["time"]), default=None)
