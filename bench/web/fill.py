"""Filling of the database through the ingest API; what an earlier filling stored is not posted again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import httpx

from bench.web.additions import DATASET, make_dataset
from bench.web.server import claim_runs
from bench.web.stream import GROUPS, SIZE, RunPlan, batches, events

LARGE, REMOVED = "large", "removed"
"""Names of the largest run and of the run that is deleted."""
TRACE = "long trace"
"""Name of the run with a token trace."""
_AT_ONCE = 4
"""Runs that post at the same time."""


def plans(trajectories: int, tasks: int) -> list[RunPlan]:
    """Return the runs: one with a quarter of the trajectories, one to delete with a fifth, eight others."""
    groups = GROUPS if trajectories >= 20 * GROUPS * SIZE else 8

    def plan(number: int, name: str, share: float) -> RunPlan:
        iterations = max(2, round(share * trajectories / (groups * SIZE)))
        return RunPlan(name=name, number=number, iterations=iterations, tasks=tasks, groups=groups)

    others = [plan(number, f"arm {number % 2} seed {number // 2 - 1}", 0.068) for number in range(2, 10)]
    return [plan(0, LARGE, 0.24), plan(1, REMOVED, 0.2), *others]


def fill(url: str, state: Path, *, trajectories: int, tasks: int) -> float:
    """Store the dataset and all runs; return the events posted per second, 0 where nothing was missing.

    Args:
        url: the web server.
        state: file with the run numbers and tokens of an earlier filling.
        trajectories: approximate number of all trajectories.
        tasks: tasks of the dataset.
    """
    from webapp.models import Run

    known = json.loads(state.read_text()) if state.exists() else {}
    if not known:
        make_dataset(tasks)
    wanted = plans(trajectories, tasks)
    for plan in wanted:
        number = known.get(plan.name, [0])[0]
        if not Run.objects.filter(pk=number).exists():
            overrides = {"name": plan.name, "dataset.name": DATASET, "seed": plan.number}
            known[plan.name] = claim_runs(1, **overrides)[0]
        state.write_text(json.dumps(known))
    stored = dict(Run.objects.values_list("pk", "last_seq"))
    open_ = [
        plan for plan in wanted if not Run.objects.filter(pk=known[plan.name][0], state="succeeded").exists()
    ]
    posted: list[int] = []
    began = time.perf_counter()

    def work(pending: Iterator[RunPlan]) -> None:
        for plan in pending:
            number, token = known[plan.name]
            lines = islice(events(plan), stored[number], None)
            posted.append(post_all(url, (number, token), batches(lines)))
            print(f"  {plan.name} posted after {time.perf_counter() - began:.0f} s", flush=True)

    pending = iter(open_)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for done in [threads.submit(work, pending) for _ in range(_AT_ONCE)]:
            done.result()
    return sum(posted) / (time.perf_counter() - began)


def remove_leftovers(runs: dict[str, tuple[int, str]]) -> None:
    """Delete the runs of earlier measurements, so that each begins with the same database."""
    from django.utils import timezone

    from webapp.models import Run
    from webapp.runs.services import deletion

    kept = [number for number, _ in runs.values()]
    if not Run.objects.filter(pk__in=kept).exists():
        raise SystemExit("the database has none of the runs in runs.json: this is not a folder of the bench")
    for run in Run.objects.exclude(pk__in=kept).exclude(name=TRACE):
        now = timezone.now()
        Run.objects.filter(pk=run.pk).update(state="stopped", archived_at=now, deleting_at=now)
        deletion.delete(run_id=run.pk)


def post_all(url: str, run: tuple[int, str], bodies: Iterator[bytes] | list[bytes]) -> int:
    """Post the batches of one run in order; return the number of events. A refusal ends the benchmark."""
    accepted = 0
    with httpx.Client(headers={"Authorization": f"Bearer {run[1]}"}, timeout=120) as client:
        for body in bodies:
            answer = client.post(
                f"{url}/api/v1/runs/{run[0]}/events", content=body, headers={"Content-Encoding": "gzip"}
            )
            if answer.status_code != 200:
                raise SystemExit(f"refused: {answer.status_code} {answer.text[:300]}")
            accepted += answer.json()["accepted"]
    return accepted
