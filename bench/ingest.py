"""Throughput of the ingest API in steps per second: ``python -m bench.ingest [--quick]``.

Starts an embedded PostgreSQL (durable, as shipped) and one uvicorn, and posts batches of step events
over HTTP like the engine's shipper: gzip, 500 events or 1 MiB per batch. The bar is 5,000 per
second on two cores. There is one client per run. Besides the rate it prints the CPU time that web server and
PostgreSQL spent on 1,000 steps, which hardly depends on the machine's load: with two idle cores the rate is
at least 1,000 divided by the larger one.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench.harness import store
from engine.processes.ports import free_port
from webapp.supervisor.embedded import EmbeddedPostgres, EmbeddedRedis, die_with_parent, stop_process

PROJECT = Path(__file__).resolve().parent.parent
BATCH = 500
THOUGHT = "The loop compares with the wrong operator, so the last chunk is lost. " * 4
OBSERVATION = "    312      while lo < hi: yield src[lo:hi]; lo, hi = hi, hi + size\n" * 14


def batches(num_steps: int) -> list[bytes]:
    """Yield batches of events of rollouts with 50 steps, 16 concurrently; a step is about 1.9 kB."""
    lines: list[str] = []

    def add(type_: str, **fields: Any) -> None:
        record = {"type": type_, "seq": len(lines) + 1, "epoch": 1, "time": time.time(), **fields}
        lines.append(json.dumps(record))

    add("run_started", host="bench", pid=1, total_iterations=1)
    for wave in range(-(-num_steps // 800)):
        refs = [{"iteration": wave, "phase": "train", "task_id": f"task-{n}", "index": 0} for n in range(16)]
        for ref in refs:
            add("trajectory_started", ref=ref, sandbox_id="s")
        for index in range(50):
            for ref in refs:
                add(
                    "step_finished", ref=ref, index=index, thought=THOUGHT,
                    response=f"<think>\n{THOUGHT}\n</think>", tool="execute_bash",
                    arguments={"cmd": f"sed -n '{index},+20p' src/module_{index}.py"},
                    observation=OBSERVATION, exit_code=0, generated_tokens=80, thinking_tokens=60,
                )  # fmt: skip
        for ref in refs:
            add(
                "trajectory_finished", ref=ref, termination="submitted", verdict="passed", reward=1.0,
                num_steps=50, patch="diff --git a/a.py b/a.py\n",
            )  # fmt: skip
    return [
        gzip.compress("\n".join(lines[at : at + BATCH]).encode(), 1) for at in range(0, len(lines), BATCH)
    ]


@contextlib.contextmanager
def web_server(
    home: Path, application: str = "webapp.asgi:application"
) -> Iterator[tuple[str, dict[str, str], dict[str, int]]]:
    """Start the databases and one uvicorn; yield its address, its environment and the process ids."""
    postgres = EmbeddedPostgres(home / "postgres", port=free_port(), password="bench")
    redis = EmbeddedRedis(home / "redis", port=free_port(), password="bench")
    port = free_port()
    (home / "static").mkdir()
    with contextlib.ExitStack() as stack:
        stack.callback(postgres.stop)
        postgres.start()
        stack.callback(redis.stop)
        redis.start()
        environment = dict(os.environ) | {
            "TRAINYARD_HOME": str(home),
            "DATABASE_URL": postgres.url,
            "REDIS_URL": redis.url,
            "PYTHONPATH": str(PROJECT),
        }
        for arguments in (["migrate"], ["collectstatic", "--no-input"]):
            manage = [sys.executable, str(PROJECT / "manage.py"), *arguments, "-v", "0"]
            subprocess.run(manage, env=environment, check=True)
        command = [sys.executable, "-m", "uvicorn", application, "--port", str(port)]
        with (home / "web.log").open("wb") as log:
            server = subprocess.Popen(
                [*command, "--log-level", "warning"],
                env=environment, cwd=PROJECT, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGTERM),
            )  # fmt: skip
        stack.callback(lambda: stop_process(server, first=signal.SIGTERM, seconds=10))
        url = f"http://127.0.0.1:{port}"
        _wait(url)
        assert postgres.process is not None
        assert redis.process is not None
        pids = {"web": server.pid, "postgres": postgres.process.pid, "redis": redis.process.pid}
        yield url, environment, pids


def _wait(url: str) -> None:
    for _ in range(600):
        with contextlib.suppress(httpx.TransportError):
            httpx.get(f"{url}/api/v1/openapi.json")
            return
        time.sleep(0.1)
    raise SystemExit("the web server did not start")


def claim_runs(environment: dict[str, str], count: int) -> list[tuple[int, str]]:
    """Create runs and claim their launch; return them with their tokens."""
    script = (
        "import django, json, sys; django.setup()\n"
        "from webapp.models import Dataset\n"
        "from webapp.runs.services import attempts, runs\n"
        "Dataset.objects.create(name='quickstart')\n"
        "out = []\n"
        "for _ in range(int(sys.argv[1])):\n"
        "    run = runs.create(recipe='quickstart'); runs.start(run=run)\n"
        "    claim = attempts.claim_launch(run_id=run.pk); out.append([run.pk, claim.token])\n"
        "print(json.dumps(out))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(count)],
        env=environment | {"DJANGO_SETTINGS_MODULE": "webapp.settings"},
        cwd=PROJECT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [(int(number), str(token)) for number, token in json.loads(done.stdout.splitlines()[-1])]


def post_all(url: str, run: tuple[int, str], bodies: list[bytes]) -> None:
    """Post every batch of one run in order; a refusal ends the benchmark."""
    with httpx.Client(headers={"Authorization": f"Bearer {run[1]}"}, timeout=60) as client:
        for body in bodies:
            answer = client.post(
                f"{url}/api/v1/runs/{run[0]}/events", content=body, headers={"Content-Encoding": "gzip"}
            )
            if answer.status_code != 200:
                raise SystemExit(f"refused: {answer.status_code} {answer.text[:300]}")


def measure(url: str, runs: list[tuple[int, str]], bodies: list[bytes]) -> float:
    """Return the seconds until every run's batches are stored."""
    threads = [threading.Thread(target=post_all, args=(url, run, bodies)) for run in runs]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its current children."""
    root = psutil.Process(pid)
    times = [process.cpu_times() for process in [root, *root.children(recursive=True)]]
    return float(sum(time.user + time.system for time in times))


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="an eighth of the steps")
    quick = parser.parse_args().quick
    num_steps = 8_000 if quick else 64_000
    bodies = batches(num_steps)
    results: dict[str, float | int] = {"steps": num_steps, "cores": os.cpu_count() or 0}
    with (
        tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder,
        web_server(Path(folder)) as (url, environment, pids),
    ):
        runs = claim_runs(environment, 4)
        measure(url, runs[:1], batches(800))
        for clients, chosen in ((1, runs[1:2]), (2, runs[2:4])):
            before = {name: cpu_seconds(pid) for name, pid in pids.items()}
            seconds = measure(url, chosen, bodies)
            steps = clients * num_steps
            results[f"steps_per_s_{clients}_runs"] = round(steps / seconds)
            for name, pid in pids.items():
                cpu_s = cpu_seconds(pid) - before[name]
                results[f"{name}_cpu_s_per_1000_steps_{clients}_runs"] = round(1000 * cpu_s / steps, 3)
    results["load_average"] = round(os.getloadavg()[0], 1)
    for name, value in results.items():
        print(f"{name:36} {value}")
    store("ingest", results, quick=quick)


if __name__ == "__main__":
    main()
