"""Latency of pages and of lists of the API over the filled database."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx

from bench.web.additions import DATASET
from bench.web.fill import LARGE
from bench.web.stream import task_key

BAR_MS = 200
MOST_MS = 5_000
"""Time after which a slow page is not requested again."""
CORE = ("run", "trajectory", "runs table", "search", "comparison")
"""Kinds of pages that have the bar; the others are only shown."""


@dataclass(frozen=True, slots=True)
class Address:
    """A page or list, with its kind."""

    kind: str
    name: str
    path: str


def addresses(runs: dict[str, tuple[int, str]], traced: int) -> Iterator[Address]:
    """Yield the pages and lists.

    Args:
        runs: number and token of each run.
        traced: the trajectory with a token trace.
    """
    from webapp.models import Experiment, Trajectory

    large = runs[LARGE][0]
    arms = [number for name, (number, _) in runs.items() if name.startswith("arm")]
    middle = Trajectory.objects.filter(run=large, phase="train").order_by("-num_steps", "pk").first()
    assert middle is not None
    group = f"/runs/{large}/train/{middle.iteration}/{middle.task_key}/"
    other = Trajectory.objects.filter(group=middle.group_id).exclude(pk=middle.pk).first()
    assert other is not None
    some = ",".join(map(str, arms))
    experiment = Experiment.objects.get().pk
    tabs = (
        "trajectories", "behaviours", "tasks", "timeline", "evaluation", "checkpoints", "events",
        "configuration",
    )  # fmt: skip
    yield Address("run", "groups", f"/runs/{large}/")
    for tab in tabs:
        yield Address("run", tab, f"/runs/{large}/?tab={tab}")
    yield Address("run", "groups, none solved", f"/runs/{large}/?tab=groups&outcome=none")
    yield Address("run", "groups, page 20", f"/runs/{large}/?tab=groups&page=20")
    yield Address("trajectory", f"{middle.num_steps} steps", f"{group}{middle.index}/")
    yield Address("runs table", "newest", "/runs/")
    yield Address("runs table", "by held-out rate", "/runs/?sort=-heldout")
    for name, query in searches(large).items():
        yield Address("search", name, f"/trajectories/?{query}")
    yield Address("comparison", "8 runs", f"/runs/compare/?runs={some}")
    yield Address("comparison", "points of 8 runs", f"/runs/series/?runs={some}&key=reward/mean")
    yield Address("comparison", "tasks by runs", f"/runs/compare/tasks/?runs={some}")
    yield Address("comparison", "two rollouts", f"/trajectories/compare/?left={middle.pk}&right={other.pk}")
    points = "first={}:eval:heldout:0&second={}:eval:heldout:0".format(*arms)
    others = {
        "overview": "/", "iteration": f"/runs/{large}/train/{middle.iteration}/", "group": group,
        "evaluation": f"/evaluations/{large}/eval:heldout/0/", "what-if": f"/runs/{large}/what-if/",
        "evaluations compared": f"/evaluations/compare/?{points}", "scanners": "/scanners/",
        "experiments": "/experiments/", "experiment": f"/experiments/{experiment}/", "datasets": "/datasets/",
        "new run": "/runs/new/", "new run, recipe": "/runs/new/?recipe=quickstart",
        "sandboxes": "/sandboxes/",
        "tasks": f"/datasets/{DATASET}/", "tasks, last page": f"/datasets/{DATASET}/?page=100000",
        "tasks in quarantine": f"/datasets/{DATASET}/?health=quarantined",
        "tasks solved sometimes": f"/datasets/{DATASET}/?solved=mixed",
        "tasks not tried": f"/datasets/{DATASET}/?solved=unmeasured",
        "tasks by solve rate": f"/datasets/{DATASET}/?rate_min=0.2&rate_max=0.8",
        "health of tasks": f"/datasets/{DATASET}/health/",
        "task": f"/datasets/{DATASET}/tasks/{task_key(31)}/",
        "64K tokens": f"/trajectories/{traced}/tokens/", "metrics": "/metrics",
        "steps": f"/trajectories/{middle.pk}/steps/?from=20",
        "text in steps": f"/trajectories/{middle.pk}/found/?find=import",
    }  # fmt: skip
    for name, path in others.items():
        yield Address("page", name, path)
    for name, path in lists(large, experiment, middle.pk, traced, some).items():
        yield Address("api", name, f"/api/v1{path}")


def searches(large: int) -> dict[str, str]:
    """Return queries of the search by name; ``large`` is the number of the largest run."""
    return {
        "all": "", "words of thoughts": "q=traceback+empty", "phrase": "q=%22wrong+operator%22",
        "rare word": "q=lineterminator", "words in patches": "q=return&place=patches",
        "statements": "q=parser+timeout&place=statements",
        "observations of a run": f"q=import&place=observations&run={large}",
        "words in a run": f"q=reproduce+failure&run={large}", "failed": "verdict=failed",
        "failed in a run": f"verdict=failed&run={large}", "one task": f"task={task_key(31)}",
        "part of a task's name": "task=archive-100",
        "scanner and failed": "scanner=edited_tests&verdict=failed",
        "scanner and words": "scanner=edited_tests&q=traceback", "label": "label=look+again",
        "label and scanner": "label=look+again&scanner=ran_project_tests", "held-out": "phase=eval",
        "limits": "reward_min=0.5&steps_min=70", "signs of tampering": "finding=any",
    }  # fmt: skip


def lists(large: int, experiment: int, trajectory: int, traced: int, runs: str) -> dict[str, str]:
    """Return paths of the API's lists and records by name."""
    return {
        "runs": "/runs", "run": f"/runs/{large}", "iterations": f"/runs/{large}/iterations",
        "rollouts of a run": f"/runs/{large}/trajectories", "search": "/trajectories?q=traceback",
        "search, scanner": "/trajectories?scanner=edited_tests&verdict=failed",
        "behaviours": f"/runs/{large}/behaviours", "scanners": "/scanners", "datasets": "/datasets",
        "tasks": f"/datasets/{DATASET}/tasks", "health": f"/datasets/{DATASET}/health",
        "experiment": f"/experiments/{experiment}/results", "comparison": f"/runs/compare?runs={runs}",
        "tasks by runs": f"/runs/compare/tasks?runs={runs}", "trajectory": f"/trajectories/{trajectory}",
        "token trace": f"/trajectories/{traced}/token-trace",
        "evaluation": f"/runs/{large}/evaluations/eval:heldout/0/report",
        "timeline": f"/runs/{large}/timeline",
    }  # fmt: skip


def measure(client: httpx.Client, path: str, repeats: int) -> dict[str, float]:
    """Return median and 95th percentile of the response time, and the size of a page."""
    client.get(path)
    times: list[float] = []
    while len(times) < repeats and sum(times) < MOST_MS:
        began = time.perf_counter()
        response = client.get(path)
        times.append(1000 * (time.perf_counter() - began))
        assert response.status_code == 200, (path, response.status_code)
    return {
        "p50_ms": round(statistics.median(times), 1),
        "p95_ms": round(percentile(times, 0.95), 1),
        "wire_kib": round(response.num_bytes_downloaded / 1024, 1),
        "page_kib": round(len(response.content) / 1024, 1),
        "queries": count_queries(path),
    }


def percentile(values: list[float], share: float) -> float:
    """Return a percentile of values."""
    return sorted(values)[min(len(values) - 1, round(share * len(values)))]


def count_queries(path: str) -> int:
    """Return the number of queries of a page."""
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    client = Client(HTTP_HOST="localhost")
    client.force_login(User.objects.get(username="bench"))
    client.get(path)
    with CaptureQueriesContext(connection) as captured:
        client.get(path)
    return len(captured)
