"""Latency from an event to the display with 50 open tabs: ``python -m bench.live [--quick]``.

Starts PostgreSQL, Redis, the web server and a worker, and plays the events of a training run like the
quickstart's (``plan``) through the engine's own spool and shipper, alternately without tabs and with 50:
three in Chromium, the others as WebSocket clients that behave like the page. Reports the latency of every
stage (``stages``), renderings of live pages with their CPU time, and the CPU time of each process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench.harness import store
from bench.ingest import claim_runs, cpu_seconds, web_server
from bench.live.plan import NUM_TABS, PERIOD_S, tabs
from bench.live.stages import Log, stages
from bench.pages import session_of

HEAD_START_S = 10.0
"""Time for the processes of a round to start before its first event."""
PROJECT = Path(__file__).resolve().parent.parent.parent


def start(module: str, settings: dict[str, Any], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a part of the benchmark in a separate process."""
    command = [sys.executable, "-m", f"bench.live.{module}", json.dumps(settings)]
    return subprocess.Popen(command, env=environment, cwd=PROJECT, start_new_session=True)


def play(
    folder: Path,
    settings: dict[str, Any],
    environment: dict[str, str],
    pids: dict[str, int],
    *,
    open_tabs: bool,
) -> Log:
    """Play a run, with or without tabs, and return the measurements of this round."""
    settings |= {"start": time.time() + HEAD_START_S}
    logs = {name: str(folder / f"{name}-{settings['run']}.json") for name in ("player", "clients")}
    trace = folder / "renderings"
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
        "tabs": NUM_TABS if open_tabs else 0,
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


def measure(*, iterations: int, rounds: int) -> list[Log]:
    """Start the services and measure alternately without and with tabs."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        folder = Path(name)
        (folder / "renderings").touch()
        os.environ["BENCH_LIVE_LOG"] = str(folder / "renderings")
        with web_server(folder, "bench.live.traced:application") as (url, environment, pids):
            celery = [sys.executable, "-m", "celery", "-A", "workers.app", "worker", "--concurrency", "2"]
            worker = subprocess.Popen(
                [*celery, "--loglevel", "ERROR"], env=environment, cwd=PROJECT, start_new_session=True
            )
            try:
                runs = claim_runs(environment, 2 * rounds)
                os.environ |= environment | {
                    "DJANGO_SETTINGS_MODULE": "webapp.settings",
                    "DJANGO_ALLOW_ASYNC_UNSAFE": "1",
                }
                import django

                django.setup()
                roles = {tab.role for tab in tabs()}
                cookies = {role: session_of(f"bench-{role}", role) for role in sorted(roles)}
                settings = {
                    "base": url, "cookies": cookies, "iterations": iterations, "period_s": PERIOD_S,
                    "browsers": 3,
                }  # fmt: skip
                logs = []
                for number, (run, token) in enumerate(runs):
                    target = {
                        "run": run, "token": token, "url": f"{url}/api/v1/runs/{run}/events",
                        "folder": str(folder / f"run-{run}"),
                    }  # fmt: skip
                    logs.append(play(folder, settings | target, environment, pids, open_tabs=number % 2 == 1))
                    print(json.dumps(logs[-1]), flush=True)
            finally:
                worker.terminate()
                worker.wait()
    return logs


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of two iterations")
    quick = parser.parse_args().quick
    results = measure(iterations=2 if quick else 3, rounds=1 if quick else 2)
    store("live", {"cores": os.cpu_count(), "rounds": results}, quick=quick)


if __name__ == "__main__":
    main()
