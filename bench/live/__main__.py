"""Latency from an event to the display with 50 open tabs: ``python -m bench.live [--quick]``.

Starts PostgreSQL, Redis, the web server and a worker, and plays the events of a training run like the
quickstart's (``plan``) through the engine's own spool and shipper, alternately without tabs and with 50:
three in Chromium, the others as WebSocket clients that behave like the page. Reports the latency of every
stage (``stages``), renderings of live pages with their CPU time, and the CPU time of each process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.harness import store
from bench.live.plan import NUM_TABS, PERIOD_S
from bench.live.stages import Log, stages
from bench.web.server import claim_runs, cpu_seconds, session_of, use_database, web_server, worker

HEAD_START_S = 10.0
"""Time for the processes of a round to start before its first event."""
PROJECT = Path(__file__).resolve().parent.parent.parent


@contextlib.contextmanager
def traced_server(home: Path) -> Iterator[tuple[str, dict[str, str], dict[str, int]]]:
    """Start a web server that logs renderings, as ``web_server``, and use its databases."""
    os.environ["BENCH_LIVE_LOG"] = str(home / "renderings")
    (home / "renderings").touch()
    with web_server(home, "bench.live.traced:application") as started:
        use_database(started[1])
        yield started


def start(module: str, settings: dict[str, Any], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a part of the benchmark in a separate process."""
    command = [sys.executable, "-m", f"bench.live.{module}", json.dumps(settings)]
    return subprocess.Popen(command, env=environment, cwd=PROJECT, start_new_session=True)


def play(
    folder: Path,
    settings: dict[str, Any],
    environment: dict[str, str],
    pids: dict[str, int],
) -> Log:
    """Play a run, with or without tabs, and return the measurements of this round."""
    open_tabs = settings["tabs"] > 0
    settings |= {"start": time.time() + HEAD_START_S}
    logs = {name: str(folder / f"{name}-{settings['run']}.json") for name in ("player", "clients")}
    trace = Path(os.environ["BENCH_LIVE_LOG"])
    offset = trace.stat().st_size
    player = start("player", settings | {"log": logs["player"]}, environment)
    clients = start("clients", settings | {"log": logs["clients"]}, environment) if open_tabs else None
    time.sleep(max(0.0, settings["start"] - time.time()))
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    load, began = os.getloadavg()[0], time.monotonic()
    watched: list[Log] = []
    if open_tabs:
        from bench.live.browser import watch

        watched = watch(settings)
    if player.wait() or (clients is not None and clients.wait()):
        raise SystemExit("a part of the benchmark failed")
    cpu_s = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
    played = json.loads(Path(logs["player"]).read_text())
    if clients is not None:
        watched += json.loads(Path(logs["clients"]).read_text())
    renderings = [json.loads(line) for line in trace.read_bytes()[offset:].splitlines()]
    results = {
        "tabs": settings["tabs"],
        "load_average": round(load, 1),
        "seconds": round(time.monotonic() - began, 1),
        "events": len(played["events"]),
        "cpu_s": {name: round(value, 2) for name, value in (cpu_s | {"player": played["cpu_s"]}).items()},
        **stages(played, watched, renderings, settings),
    }
    return results | {"frames": frames(watched, settings), "renderings": by_page(renderings)}


def frames(logs: list[Log], settings: Log) -> Log:
    """Return the rate and size of the updates sent to the WebSocket clients."""
    sizes = [frame["bytes"] for log in logs for frame in log["frames"] if "bytes" in frame]
    seconds = settings["iterations"] * PERIOD_S
    return {"per_s": round(len(sizes) / seconds, 1), "kib_per_s": round(sum(sizes) / seconds / 1024, 1)}


def by_page(renderings: list[Log]) -> Log:
    """Return number, total CPU time and mean duration of the renderings of each page."""
    pages = defaultdict(list)
    for entry in renderings:
        pages[entry["key"][0]].append(entry)
    return {
        page: {
            "n": len(rows),
            "cpu_s": round(sum(entry["cpu_s"] for entry in rows), 2),
            "mean_ms": round(1000 * sum(entry["ended"] - entry["began"] for entry in rows) / len(rows), 1),
        }
        for page, rows in sorted(pages.items())
    }


def measure(
    home: Path,
    url: str,
    environment: dict[str, str],
    pids: dict[str, int],
    *,
    iterations: int,
    rounds: Sequence[int],
) -> list[Log]:
    """Measure rounds on a server of ``bench.live.traced``, each with a number of tabs or none."""
    claimed = claim_runs(len(rounds))
    cookies = {role: session_of(f"bench-{role}", role) for role in ("operator", "viewer")}
    logs = []
    with worker(environment):
        for (run, token), num_tabs in zip(claimed, rounds, strict=True):
            settings = {
                "base": url, "cookies": cookies, "iterations": iterations, "period_s": PERIOD_S,
                "browsers": 3, "tabs": num_tabs,
                "run": run, "token": token, "url": f"{url}/api/v1/runs/{run}/events",
                "folder": str(home / f"run-{run}"),
            }  # fmt: skip
            logs.append(play(home, settings, environment, pids))
            print(json.dumps(logs[-1]), flush=True)
    return logs


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of two iterations")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        home = Path(name)
        with traced_server(home) as (url, environment, pids):
            rounds = (0, NUM_TABS) * (1 if quick else 2)
            results = measure(home, url, environment, pids, iterations=2 if quick else 3, rounds=rounds)
    store("live", {"cores": os.cpu_count(), "rounds": results}, quick=quick)


if __name__ == "__main__":
    main()
