"""Collections at scale: our CPU time per step, memory over the run, and rollouts lost or repeated by kills.

10,000 rollouts of a scripted policy in sandboxes in memory, and 1,000 of the oracle in local sandboxes
(bubblewrap), graded by real tests, through the real scheduler, observer, spool and ledger, in separate
processes. The first collection is made without kills and with three ``kill -9`` at random moments, the second
with three. Run: ``python -m bench.collect [--quick]``; writes ``bench/results/collect.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any, TextIO

import structlog

from bench.harness import store
from engine.config.policies import OraclePolicyConfig
from engine.config.rollout import AgentConfig, RolloutConfig
from engine.config.run import RolloutRun
from engine.config.sandbox import SandboxConfig
from engine.events.delivery.control import Control
from engine.events.delivery.sink import EventSink
from engine.events.delivery.spool import SPOOL_NAME, SpoolSink, read_lines
from engine.events.types import RunStarted, TrajectoryFinished
from engine.inference.base import ChatRequest, ChatResponse
from engine.inference.scripted.policies import ScriptedPolicy
from engine.orchestrator import execute
from engine.orchestrator.collection.collector import Collector
from engine.orchestrator.collection.ledger import Ledger
from engine.orchestrator.context import RunContext
from engine.orchestrator.watch.event_observer import EventObserver
from engine.rollout import GroupRequest
from engine.sandbox.base import ExecResult
from tests.builders.rollout_builders import make_row, respond, swe_scheduler
from tests.fakes.memory_sandbox import MemoryBackend, printed
from tests.integration import toy_yard

SAMPLES_NAME = "samples.jsonl"
SAMPLE_EVERY = 20
"""Rollouts between two samples of memory and CPU time."""
WARM_UP = 0.2
"""Share of a run after which the process counts as warm for the memory measurement."""
TASKS = 50
_COLUMNS = (
    *("collection", "rollouts", "kills", "twice", "missing", "begun_anew", "cpu_ms_per_step"),
    *("rss_mib_warm", "rss_mib_end", "rss_kib_per_1000_rollouts", "wall_s", "load_before"),
)
CONCURRENT_IN_MEMORY, CONCURRENT_LOCAL = 64, 4


class SamplingSink:
    """Event sink that forwards events and samples this process as rollouts finish."""

    def __init__(self, sink: EventSink, stream: TextIO) -> None:
        self._sink = sink
        self._stream = stream
        self._finished = self._steps = 0

    def emit(self, event_type: type[Any], /, **fields: Any) -> int:
        """Record the event."""
        seq = self._sink.emit(event_type, **fields)
        if event_type is TrajectoryFinished:
            self._finished += 1
            self._steps += fields["num_steps"]
            if self._finished % SAMPLE_EVERY == 0:
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                row = {
                    "finished": self._finished,
                    "steps": self._steps,
                    "cpu_s": time.process_time(),
                    "rss_kib": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
                }
                self._stream.write(json.dumps(row) + "\n")
                self._stream.flush()
        return seq


class Script(ScriptedPolicy):
    """Policy that views a file, runs the tests, changes a line and submits."""

    name = "script"
    _TURNS = (
        respond("file_editor", command="view", path="pkg/m.py", view_range=[10, 60]),
        respond("execute_bash", cmd="python -m pytest -q"),
        respond("file_editor", command="str_replace", path="pkg/m.py", old_str="a + 7\n", new_str="a + 8\n"),
        respond("execute_bash", cmd="python -m pytest -q"),
        respond("finish", command="submit"),
    )

    async def respond(self, request: ChatRequest) -> ChatResponse:
        """Return the next turn."""
        return ChatResponse(content=self._TURNS[len(request.context.steps)])


class ForgetfulBackend(MemoryBackend):
    """Memory backend that keeps no list of the sandboxes it started."""

    @property
    def started(self) -> list[Any]:
        """Return a new list, so additions to it are lost."""
        return []

    @started.setter
    def started(self, _value: list[Any]) -> None:
        pass


async def _printed(_command: str) -> ExecResult:
    return printed("a line of output from a test run\n" * 30)


async def collect_in_memory(run: RunContext, rollouts: int) -> None:
    """Collect the rollouts in memory that earlier attempts have not finished."""
    source = "".join(f"def f{n}(a):\n    return a + {n}\n\n\n" for n in range(40))
    ledger = Ledger.read(run.run_dir / SPOOL_NAME)
    run.sink.emit(RunStarted, host="bench", pid=os.getpid(), rollouts_kept=ledger.count)
    rows = [make_row(f"{number:016x}") for number in range(TASKS)]
    groups = [GroupRequest(row=row, iteration=0, phase="train", size=rollouts // TASKS) for row in rows]
    observer = EventObserver(run.sink)
    scheduler = swe_scheduler(
        ForgetfulBackend({"/testbed/pkg/m.py": source.encode()}, command=_printed),
        Script(),
        agent=AgentConfig(max_steps=10),
        sandbox=SandboxConfig(max_live=CONCURRENT_IN_MEMORY, max_starting=CONCURRENT_IN_MEMORY),
        rollout=RolloutConfig(max_concurrent=CONCURRENT_IN_MEMORY),
        observer=observer,
    )
    collector = Collector(
        run, scheduler, groups, ledger, infra_retries=1, max_concurrent=CONCURRENT_IN_MEMORY
    )
    await collector.collect()
    observer.close()


def local_config(rollouts: int) -> RolloutRun:
    """Return the oracle's collection on the two tasks of the toy dataset."""
    return toy_yard.sampling(OraclePolicyConfig()).model_copy(
        update={"rollout": RolloutConfig(group_size=rollouts // 2, max_concurrent=CONCURRENT_LOCAL)}
    )


def attempt(run_dir: Path, home: Path, epoch: int, rollouts: int, *, local: bool) -> None:
    """Run one attempt in this process."""
    with (
        closing(SpoolSink(run_dir, epoch=epoch)) as spool,
        (run_dir / f"{epoch}-{SAMPLES_NAME}").open("w") as stream,
    ):
        run = RunContext(
            run_id=run_dir.name, epoch=epoch, run_dir=run_dir, home=home,
            sink=SamplingSink(spool, stream), control=Control(), closing=AsyncExitStack(),
        )  # fmt: skip
        if local:
            assert execute(local_config(rollouts), run) == 0
        else:
            asyncio.run(collect_in_memory(run, rollouts))


def measure(home: Path, name: str, rollouts: int, *, local: bool, kills: int) -> dict[str, Any]:
    """Run a collection in separate processes with a number of kills; return its costs and losses."""
    run_dir = home / "runs" / name
    run_dir.mkdir(parents=True)
    load, started = os.getloadavg()[0], time.monotonic()
    moments = sorted(random.Random(5).sample(range(rollouts // 20, rollouts * 3 // 4), kills))
    for epoch, moment in enumerate([*moments, None], start=1):
        command = [sys.executable, "-m", "bench.collect", "--attempt", str(run_dir), "--epoch", str(epoch)]
        command += ["--home", str(home), "--rollouts", str(rollouts), *(["--local"] if local else [])]
        process = subprocess.Popen(command, start_new_session=True)
        while moment is not None and finished_lines(run_dir) < moment:
            if process.poll() is not None:
                raise SystemExit(f"attempt {epoch} of {name} ended with {process.returncode}")
            time.sleep(0.05)
        if moment is not None:
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        if moment is None and code != 0:
            raise SystemExit(f"the last attempt of {name} ended with {code}")
    return {
        "collection": name,
        "rollouts": rollouts,
        "kills": kills,
        **accounts(run_dir, rollouts),
        **costs(run_dir, range(1, kills + 2)),
        "wall_s": round(time.monotonic() - started, 1),
        "load_before": round(load, 1),
        "load_after": round(os.getloadavg()[0], 1),
    }


def finished_lines(run_dir: Path) -> int:
    """Return the approximate number of rollouts finished by the attempts so far."""
    return SAMPLE_EVERY * sum(len(rows) for rows in map(samples, run_dir.glob(f"*-{SAMPLES_NAME}")))


def samples(path: Path) -> list[dict[str, float]]:
    """Return the complete samples of an attempt."""
    return [json.loads(line.data) for line in read_lines(path)]


def accounts(run_dir: Path, rollouts: int) -> dict[str, Any]:
    """Return the numbers of rollouts reported twice, missing, or in flight at a kill."""
    started: Counter[tuple[str, int]] = Counter()
    finished: Counter[tuple[str, int]] = Counter()
    for line in read_lines(run_dir / SPOOL_NAME):
        event = json.loads(line.data)
        if event["type"] in ("trajectory_started", "trajectory_finished"):
            key = (event["ref"]["task_id"], event["ref"]["index"])
            ended = event["type"] == "trajectory_finished" and event["reward"] is not None
            started[key] += event["type"] == "trajectory_started"
            finished[key] += ended
    return {
        "twice": sum(count > 1 for count in finished.values()),
        "missing": rollouts - sum(count > 0 for count in finished.values()),
        "begun_anew": sum(started.values()) - sum(finished.values()),
        "spool_mb": round((run_dir / SPOOL_NAME).stat().st_size / 1e6, 1),
    }


def costs(run_dir: Path, epochs: Sequence[int]) -> dict[str, Any]:
    """Return CPU time per step, and memory over the longest attempt."""
    attempts = [rows for epoch in epochs if (rows := samples(run_dir / f"{epoch}-{SAMPLES_NAME}"))]
    steps = sum(rows[-1]["steps"] - rows[0]["steps"] for rows in attempts)
    cpu = sum(rows[-1]["cpu_s"] - rows[0]["cpu_s"] for rows in attempts)
    longest = max(attempts, key=len)
    warm = longest[int(len(longest) * WARM_UP) :]
    slope, _ = statistics.linear_regression(
        [row["finished"] for row in warm], [row["rss_kib"] for row in warm]
    )
    return {
        "steps": int(sum(rows[-1]["steps"] for rows in attempts)),
        "cpu_ms_per_step": round(1000 * cpu / steps, 3),
        "rollouts_measured": int(longest[-1]["finished"]),
        "rss_mib_warm": round(warm[0]["rss_kib"] / 1024, 1),
        "rss_mib_end": round(warm[-1]["rss_kib"] / 1024, 1),
        "rss_kib_per_1000_rollouts": round(1000 * slope, 1),
    }


def main() -> None:
    """Measure, print and store; with ``--attempt`` run as the measured process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1,000 and 200 rollouts")
    parser.add_argument("--attempt", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--epoch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rollouts", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--local", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if options.attempt:
        attempt(options.attempt, options.home, options.epoch, options.rollouts, local=options.local)
        return
    num_memory, num_local = (1_000, 200) if options.quick else (10_000, 1_000)
    with tempfile.TemporaryDirectory(prefix="bench-collect-") as folder:
        home = Path(folder)
        curation = toy_yard.curation(toy_yard.write_source(home / "toykit"))
        with toy_yard.open_context(home, "curate", curation) as run:
            if execute(curation, run) != 0:
                raise SystemExit("the toy dataset could not be made")
        rows = [
            measure(home, "memory", num_memory, local=False, kills=0),
            measure(home, "memory, killed", num_memory, local=False, kills=3),
            measure(home, "local, killed", num_local, local=True, kills=3),
        ]
    print("".join(f"{head:>{max(len(head), 14) + 2}}" for head in _COLUMNS))
    for row in rows:
        print("".join(f"{row[head]!s:>{max(len(head), 14) + 2}}" for head in _COLUMNS))
    store("collect", {"cores": os.cpu_count(), "collections": rows}, quick=options.quick)


if __name__ == "__main__":
    main()
