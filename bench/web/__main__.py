"""The web application over a large database: ``python -m bench.web [--quick] [--home FOLDER]``.

Fills a PostgreSQL through the ingest API with about 100,000 trajectories and 5 million steps (one run of
24,000 trajectories, one of a million steps that is deleted, eight others) over a dataset of 20,000 tasks.
Prints the latency of pages, the rate of ingest while 20 people read, the deletion of a run beside both, and
the memory of the web process over page views, each with its bar.

``--home FOLDER`` keeps the database: what is stored is not posted again, so a filling may be interrupted, and
measurements repeated. Runs of earlier measurements are removed, and the run that was deleted is posted again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from django.db.models import Sum

from bench.harness import RESULTS, store
from bench.live.__main__ import measure as measure_tabs
from bench.live.__main__ import traced_server
from bench.web import load
from bench.web.additions import complete, traced_events
from bench.web.fill import REMOVED, TRACE, fill, post_all, remove_leftovers
from bench.web.pages import CORE, Address, addresses, measure
from bench.web.server import claim_runs, session_of, worker
from bench.web.stream import batches
from bench.web.table import table

PARTS = ("pages", "memory", "delete", "live", "ingest")
"""In this order: scans of what ``ingest`` posts would run beside the others."""


@contextlib.contextmanager
def _home(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        yield Path(name)


def filled(url: str, home: Path, *, trajectories: int, tasks: int) -> tuple[dict[str, tuple[int, str]], int]:
    """Fill the database; return the runs with their tokens, and the trajectory with a token trace."""
    from webapp.models import Experiment, TokenTrace
    from webapp.rollouts.selectors.scans import unindexed

    state = home / "runs.json"
    began = time.perf_counter()
    rate = fill(url, state, trajectories=trajectories, tasks=tasks)
    runs = {name: tuple(run) for name, run in json.loads(state.read_text()).items()}
    remove_leftovers(runs)
    if not TokenTrace.objects.exists():
        post_all(url, claim_runs(1, name=TRACE)[0], batches(traced_events()))
    if rate:
        print(f"filled at {rate:.0f} events/s in {time.perf_counter() - began:.0f} s", flush=True)
    if rate or unindexed().exists() or not Experiment.objects.exists():
        complete(runs)
    return runs, TokenTrace.objects.values_list("pk", flat=True)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The filled database and its server."""

    home: Path
    url: str
    environment: dict[str, str]
    pids: dict[str, int]
    cookie: str
    runs: dict[str, tuple[int, str]]
    addresses: list[Address]
    quick: bool
    views: int

    def pages(self) -> dict[str, Any]:
        """Measure every page and list."""
        measured = {}
        with httpx.Client(base_url=self.url, headers={"Cookie": self.cookie}, timeout=120) as client:
            for address in self.addresses:
                name = f"{address.kind}: {address.name}"
                measured[name] = numbers = measure(client, address.path, 3 if self.quick else 20)
                print(
                    f"{name:44}", "  ".join(f"{key} {value:g}" for key, value in numbers.items()), flush=True
                )
        return {"addresses": measured}

    def ingest(self) -> dict[str, Any]:
        """Measure one and two runs that post beside readers."""
        events = 8_000 if self.quick else 60_000
        return {
            "rounds": [
                load.ingest(self.url, self.pids, self._readers(), clients=clients, events_each=events)
                for clients in (1, 2)
            ]
        }

    def memory(self) -> dict[str, Any]:
        """Measure the web process over page views."""
        paths = [page.path for page in self.addresses if page.kind in CORE and page.kind != "search"]
        return {"mib": load.memory(self.url, self.cookie, self.pids["web"], paths, self.views)}

    def live(self) -> dict[str, Any]:
        """Measure 50 and 500 tabs."""
        iterations = 2 if self.quick else 3
        rounds = measure_tabs(
            self.home, self.url, self.environment, self.pids, iterations=iterations, rounds=(50, 500)
        )
        stages = ("stored", "frame", "painted")
        return {
            "rounds": [
                {key: tabs[key] for key in ("tabs", "load_average", "missed", "cpu_s")}
                | {stage: tabs["ms"].get(stage, {"n": 0}) for stage in stages}
                for tabs in rounds
            ]
        }

    def delete(self) -> dict[str, Any]:
        """Measure the deletion of a run beside ingest and readers."""
        from webapp.models import Run
        from webapp.runs.services import deletion, edits

        run = Run.objects.get(pk=self.runs[REMOVED][0])
        steps = run.trajectories.aggregate(steps=Sum("num_steps"))["steps"]

        def remove() -> None:
            edits.archive(run=run)
            deletion.request(run=run)
            while Run.objects.filter(pk=run.pk).exists():
                time.sleep(0.1)

        with worker(self.environment):
            return {"steps": steps, **load.beside(self.url, self._readers(), remove)}

    def _readers(self) -> load.Readers:
        by_kind = [[page.path for page in self.addresses if page.kind == kind] for kind in CORE]
        return load.Readers(self.url, self.cookie, by_kind)


def sizes() -> dict[str, int]:
    """Return the numbers of rows."""
    from webapp.models import Event, Group, Run, Step, Task, Trajectory

    return {model.__name__: model.objects.count() for model in (Run, Task, Group, Trajectory, Step, Event)}


def main() -> None:
    """Fill, measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2,000 trajectories, few repeats")
    parser.add_argument("--trajectories", type=int, help="approximate number (default 100,000)")
    parser.add_argument("--home", type=Path, help="folder of the database, which is kept")
    parser.add_argument(
        "--only", choices=PARTS, action="append", help="a part to measure (default all); others stay stored"
    )
    parser.add_argument("--views", type=int, help="page views over which memory is measured (default 10,000)")
    options = parser.parse_args()
    trajectories = options.trajectories or (2_000 if options.quick else 100_000)
    stored = RESULTS / "web.json"
    results = json.loads(stored.read_text()) if options.only and stored.exists() else {}
    with _home(options.home) as home, traced_server(home) as (url, environment, pids):
        runs, traced = filled(url, home, trajectories=trajectories, tasks=trajectories // 5)
        results |= {"cores": os.cpu_count(), "rows": sizes()}
        print(results["rows"], flush=True)
        bench = Bench(
            home=home, url=url, environment=environment, pids=pids, cookie=session_of("bench"), runs=runs,
            addresses=list(addresses(runs, traced)), quick=options.quick,
            views=options.views or (100 if options.quick else 10_000),
        )  # fmt: skip
        for part in options.only or PARTS:
            before = {"load_average": round(os.getloadavg()[0], 1)}
            results[part] = before | getattr(bench, part)()
            print(f"{part} measured", flush=True)
            store("web", results, quick=options.quick)
    print(table(results))


if __name__ == "__main__":
    main()
