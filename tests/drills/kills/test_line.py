"""All services on one machine: kill -9 of engine, web server and worker loses and duplicates nothing."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest

from engine.processes import process_start
from tests.integration.toy_line import (
    TERMINAL,
    Line,
    assert_nothing_lost_or_duplicated,
    running_line,
    sandboxes_left,
)
from tests.integration.toy_yard import DATASET, write_source


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    with running_line(tmp_path_factory.mktemp("line"), {}) as running:
        yield running


def test_a_dataset_is_curated_and_synchronised(line: Line) -> None:
    write_source(line.stack.home / "imports" / "toykit")
    line.stack.command(
        *("dataset", "curate", "--source", "toykit", "--output", "curated"),
        *("--set", "curation.train_tasks=2", "--set", "curation.heldout_tasks=1"),
        *("--set", "curation.stability_runs=1"),
    )
    counts = line.rows("select name, num_tasks from webapp_dataset order by name")
    assert counts == [("curated", 3), (DATASET, 3)]


def test_kills_of_engine_web_and_worker_lose_and_duplicate_nothing(line: Line) -> None:
    run = line.launch()
    line.until(lambda: line.finished_iterations(run) >= 1, "a first iteration")
    engine = line.engine_pid(run)
    os.killpg(engine, signal.SIGKILL)
    line.until(lambda: line.engine_pid(run) != engine, "a new engine")
    before = line.finished_iterations(run)
    line.kill("web")
    line.until(lambda: line.finished_iterations(run) > before, "the spool to be shipped to a new web server")
    second = line.engine_pid(run)
    line.kill("worker")
    line.until(lambda: line.state(run) in TERMINAL, "the end of the run")
    assert line.state(run) == "succeeded", line.value("select reason from webapp_run where id = %s", run)
    assert line.engine_pid(run) == second, "neither web server nor worker take the engine with them"
    assert line.value("select epoch from webapp_run where id = %s", run) == 2
    assert_nothing_lost_or_duplicated(line, run)
    assert sandboxes_left(line, run) == []


def test_run_can_be_paused_resumed_and_stopped(line: Line) -> None:
    run = line.launch(**{"trainer.iterations": 200})
    line.until(lambda: line.finished_iterations(run) >= 1, "a first iteration")
    line.stack.command("run", "pause", str(run))
    line.until(lambda: line.state(run) == "paused", "the pause")
    paused_at = line.finished_iterations(run)
    time.sleep(3)
    assert line.finished_iterations(run) == paused_at
    line.stack.command("run", "resume", str(run))
    line.until(lambda: line.finished_iterations(run) > paused_at, "an iteration after the pause")
    engine = line.engine_pid(run)
    line.stack.command("run", "stop", str(run))
    line.until(lambda: line.state(run) == "stopped", "the stop")
    line.until(lambda: process_start(engine) is None, "the engine's end")
    assert sandboxes_left(line, run) == []
    line.until(lambda: not list((line.stack.home / "sandboxes").glob("*.json")), "an empty ledger")


def test_verifier_run_scores_every_graded_rollout_of_a_collection(line: Line) -> None:
    line.stack.command(
        *("collect", DATASET, "--model", "toy", "--recipe", "quickstart-collect", "--samples", "6"),
        *("--set", "agent.max_steps=4"),
    )
    collected = int(line.value("select max(id) from webapp_run"))
    line.until(lambda: line.state(collected) in TERMINAL, "the end of the collection")
    settings = {
        "policy.checkpoint": "fresh:tiny",
        "verifier.runs": [str(collected)],
        "verifier.max_context": 2048,
    }
    flags = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    line.stack.command("run", "launch", "verify", *(part for flag in flags for part in ("--set", flag)))
    run = int(line.value("select max(id) from webapp_run"))
    line.until(lambda: line.state(run) in TERMINAL, "the end of the verification")
    assert line.state(run) == "succeeded", line.value("select reason from webapp_run where id = %s", run)
    graded = line.rows(
        "select phase, iteration, task_key, index, verdict = 'passed' from webapp_trajectory"
        " where run_id = %s and reward is not null",
        collected,
    )
    scored = line.rows(
        "select phase, iteration, task_key, index, resolved from webapp_score"
        " where run_id = %s and source = %s and p_yes > 0 and p_yes < 1",
        run,
        str(collected),
    )
    assert len(graded) == 12
    assert sorted(scored) == sorted(graded)
