"""Running services with a toy dataset and policy, and queries of their database."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from engine.processes import process_start
from tests.integration.toy_yard import DATASET, dataset_home, taught_home
from tests.ports import reserve_service_ports, reserved_port
from webapp.supervisor.stack import Stack, running_stack
from webapp.supervisor.status import ServiceState
from workers.launchers.local import STACKS_S

ITERATIONS = 6
GROUPS, SIBLINGS = 2, 4
SETTINGS = {
    "dataset.name": DATASET,
    "trainer.iterations": ITERATIONS,
    "trainer.tasks_per_iteration": GROUPS,
    "trainer.threads": 1,
    "rollout.group_size": SIBLINGS,
    "evaluation.samples": 2,
    "evaluation.train_samples": 2,
    "agent.max_steps": 4,
    "sandbox.max_live": 8,
}
TERMINAL = ("succeeded", "failed", "stopped")


class Line:
    """Running services and queries of their database."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.told: list[str] = []
        """Messages that the supervisor would print to the terminal."""

    def rows(self, query: LiteralString, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.stack.environment["DATABASE_URL"]) as database:
            return database.execute(query, parameters).fetchall()

    def value(self, query: LiteralString, *parameters: Any) -> Any:
        return self.rows(query, *parameters)[0][0]

    def state(self, run: int) -> str:
        return str(self.value("select state from webapp_run where id = %s", run))

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 400.0) -> None:
        deadline = time.monotonic() + seconds
        while not self._holds(condition):
            self.told += self.stack.check()
            assert time.monotonic() < deadline, f"never: {what}; {self.told}; {self._logs_of_live_engines()}"
            time.sleep(0.1)

    def _logs_of_live_engines(self) -> str:
        """Return the end of each live engine's log, including its thread stacks."""
        logs = []
        for file in self.stack.home.glob("runs/*/engine.pid"):
            engine = json.loads(file.read_text())
            if process_start(engine["pid"]) == engine["started"]:
                os.kill(engine["pid"], signal.SIGQUIT)
                time.sleep(STACKS_S)
                logs.append(f"run {file.parent.name}: {(file.parent / 'engine.log').read_text()[-8_000:]}")
        return "\n".join(logs)

    @staticmethod
    def _holds(condition: Callable[[], bool]) -> bool:
        try:
            return condition()
        except psycopg.OperationalError:
            return False

    def launch(self, **settings: Any) -> int:
        policy = {"policy.checkpoint": "toy"}
        flags = [f"{key}={json.dumps(value)}" for key, value in {**SETTINGS, **policy, **settings}.items()]
        self.stack.command(
            "run", "launch", "quickstart", *(part for flag in flags for part in ("--set", flag))
        )
        return int(self.value("select max(id) from webapp_run"))

    def engine_pid(self, run: int) -> int:
        return int(json.loads((self.stack.home / "runs" / str(run) / "engine.pid").read_text())["pid"])

    def finished_iterations(self, run: int) -> int:
        return int(
            self.value(
                "select count(*) from webapp_iteration where run_id = %s and finished_at is not null", run
            )
        )

    def kill(self, name: str) -> None:
        """``kill -9`` a service and wait until its replacement is up."""
        service, killed = self.stack.processes[name], self.kill_at_once(name)
        self.until(
            lambda: service.status.pid not in (0, killed) and service.status.state is ServiceState.UP,
            f"{name} back",
        )

    def kill_at_once(self, name: str) -> int:
        """``kill -9`` a service and return its process id; ``until`` restarts it."""
        process = self.stack.processes[name].process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        return process.pid


@contextmanager
def running_line(folder: Path, environment: Mapping[str, str], *, taught: bool = True) -> Iterator[Line]:
    """Start the services below ``folder``.

    Args:
        folder: an empty folder.
        environment: DATABASE_URL and REDIS_URL of running servers; the stack starts missing ones.
        taught: whether to add the partly trained policy ``toy`` to the dataset.
    """
    home = taught_home(folder / "home") if taught else dataset_home(folder / "home")
    reserve_service_ports(home)
    saved = {key: os.environ.pop(key, None) for key in ("DATABASE_URL", "REDIS_URL")}
    os.environ.update(environment)
    try:
        with running_stack(home, web_port=reserved_port(), say=lambda _line: None) as stack:
            stack.command("dataset", "sync", DATASET)
            yield Line(stack)
    finally:
        for key, value in saved.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def assert_nothing_lost_or_duplicated(line: Line, run: int, iterations: int = ITERATIONS) -> None:
    expected = iterations * GROUPS * SIBLINGS
    rows = line.rows(
        "select iteration, task_key, index, count(*) from webapp_trajectory"
        " where run_id = %s and phase = 'train' and termination <> '' group by 1, 2, 3",
        run,
    )
    assert len(rows) == expected
    assert {row[3] for row in rows} == {1}
    unfinished = line.value(
        "select count(*) from webapp_trajectory where run_id = %s and termination = ''", run
    )
    assert unfinished == 0
    assert line.finished_iterations(run) == iterations
    first, last, count = line.rows(
        "select min(seq), max(seq), count(*) from webapp_event where run_id = %s", run
    )[0]
    assert (first, last) == (1, count), "the event log has no gap and no repetition"
    spool = (line.stack.home / "runs" / str(run) / "events.jsonl").read_bytes().splitlines()
    assert len(spool) == count


def sandboxes_left(line: Line, run: int) -> list[str]:
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if b"bwrap" in command and str(line.stack.home).encode() in command:
            pids.append(process.name)
    return pids
