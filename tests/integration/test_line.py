"""The whole line on one machine: kill -9 of engine, web server and worker loses and duplicates nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from tests.integration.toy_yard import DATASET, taught_home, write_source
from webapp.supervisor.home import free_port
from webapp.supervisor.yard import Yard, process_start, running_yard

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
    """A running yard and a view into its database."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard

    def rows(self, query: LiteralString, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.yard.environment["DATABASE_URL"]) as database:
            return database.execute(query, parameters).fetchall()

    def value(self, query: LiteralString, *parameters: Any) -> Any:
        return self.rows(query, *parameters)[0][0]

    def state(self, run: int) -> str:
        return str(self.value("select state from webapp_run where id = %s", run))

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 150.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            self.yard.processes.check()
            assert time.monotonic() < deadline, f"never: {what}"
            time.sleep(0.1)

    def launch(self, **settings: Any) -> int:
        policy = {"policy.checkpoint": "toy"}
        flags = [f"{key}={json.dumps(value)}" for key, value in {**SETTINGS, **policy, **settings}.items()]
        self.yard.manage("launch", "quickstart", *(part for flag in flags for part in ("--set", flag)))
        return int(self.value("select max(id) from webapp_run"))

    def engine_pid(self, run: int) -> int:
        return int(json.loads((self.yard.home / "runs" / str(run) / "engine.pid").read_text())["pid"])

    def finished_iterations(self, run: int) -> int:
        return int(
            self.value(
                "select count(*) from webapp_iteration where run_id = %s and finished_at is not null", run
            )
        )

    def kill(self, name: str) -> None:
        child = next(child for child in self.yard.processes.children if child.spec.name == name)
        os.kill(child.process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    folder = tmp_path_factory.mktemp("line")
    write_source(folder / "home" / "imports" / "toykit")
    saved = {key: os.environ.pop(key, None) for key in ("DATABASE_URL", "REDIS_URL")}
    try:
        with running_yard(folder / "home", web_port=free_port(), say=lambda _line: None) as yard:
            yard.manage(
                *("curate", "--source", "toykit", "--output", DATASET),
                *("--set", "curation.train_tasks=2", "--set", "curation.heldout_tasks=1"),
                *("--set", "curation.stability_runs=1"),
            )
            shutil.copytree(taught_home(folder / "taught") / "policy", yard.home / "policy")
            yield Line(yard)
    finally:
        os.environ.update({key: value for key, value in saved.items() if value is not None})


def assert_nothing_lost_or_duplicated(line: Line, run: int) -> None:
    expected = ITERATIONS * GROUPS * SIBLINGS
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
    assert line.finished_iterations(run) == ITERATIONS
    first, last, count = line.rows(
        "select min(seq), max(seq), count(*) from webapp_event where run_id = %s", run
    )[0]
    assert (first, last) == (1, count), "the event log has no gap and no repetition"
    spool = (line.yard.home / "runs" / str(run) / "events.jsonl").read_bytes().splitlines()
    assert len(spool) == count


def sandboxes_left(line: Line, run: int) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if b"bwrap" in command and str(line.yard.home).encode() in command:
            found.append(process.name)
    return found


def test_kills_of_engine_web_and_worker_lose_and_duplicate_nothing(line: Line) -> None:
    run = line.launch()
    line.until(lambda: line.finished_iterations(run) >= 1, "a first iteration")
    engine = line.engine_pid(run)
    os.killpg(engine, signal.SIGKILL)
    line.until(lambda: line.engine_pid(run) != engine, "a new engine")
    line.kill("web")
    before = line.finished_iterations(run)
    line.until(lambda: line.finished_iterations(run) > before, "the spool to be shipped to a new web server")
    second = line.engine_pid(run)
    line.kill("worker")
    line.until(lambda: line.state(run) in TERMINAL, "the end of the run")
    assert line.state(run) == "succeeded", line.value("select reason from webapp_run where id = %s", run)
    assert line.engine_pid(run) == second, "neither web server nor worker take the engine with them"
    assert line.value("select epoch from webapp_run where id = %s", run) == 2
    assert_nothing_lost_or_duplicated(line, run)
    assert sandboxes_left(line, run) == []


def test_pause_is_acknowledged_resume_goes_on_and_stop_ends_everything(line: Line) -> None:
    run = line.launch(**{"trainer.iterations": 200})
    line.until(lambda: line.finished_iterations(run) >= 1, "a first iteration")
    line.yard.manage("pause_run", str(run))
    line.until(lambda: line.state(run) == "paused", "the pause")
    paused_at = line.finished_iterations(run)
    time.sleep(3)
    assert line.finished_iterations(run) == paused_at
    line.yard.manage("resume_run", str(run))
    line.until(lambda: line.finished_iterations(run) > paused_at, "an iteration after the pause")
    engine = line.engine_pid(run)
    line.yard.manage("stop_run", str(run))
    line.until(lambda: line.state(run) == "stopped", "the stop")
    line.until(lambda: process_start(engine) is None, "the engine's end")
    assert sandboxes_left(line, run) == []
    line.until(lambda: not list((line.yard.home / "sandboxes").glob("*.json")), "an empty ledger")


def test_an_engine_that_never_reaches_its_checkpoint_fails_with_a_reason(line: Line) -> None:
    (line.yard.home / "policies" / "nowhere").mkdir()
    run = line.launch(**{"policy.checkpoint": "nowhere"})
    line.until(lambda: line.state(run) in TERMINAL, "the end of the run")
    assert line.state(run) == "failed"
    assert "nowhere" in line.value("select reason from webapp_run where id = %s", run)
