"""Verification by tests: tests written by agents, their runs on candidates, and scores as events."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from engine.config.recipes import resolve
from engine.config.run import AnyRun, TestVerifierRun, parse_run_config
from engine.datasets.store import save_dataset
from engine.errors import ConfigError
from engine.events.delivery.spool import SPOOL_NAME, SpoolSink
from engine.events.types import RunStarted
from engine.orchestrator import execute
from engine.orchestrator.context import RunStopped
from engine.orchestrator.verification.verify_by_tests import REPORTS_NAME, TestVerification
from engine.types import TaskRow
from engine.verifiers.execution_based.runs import TestRuns
from tests.builders.dataset_builders import (
    NUMBERS,
    broken_task,
    new_file,
    patched,
    toolchain_or_skip,
    write_toy,
)
from tests.builders.rollout_builders import SUBMIT, respond
from tests.builders.verifier_builders import events, roll_out
from tests.fakes.openai_server import Reply, openai_server
from tests.integration.toy_yard import open_context

GOOD = patched(NUMBERS)
BREAKING = patched(NUMBERS.replace("return total / count", "return total"))
TEST = "from toy.numbers import clamp\n\n\ndef test_above():\n    assert clamp(11, 0, 10) == 10\n"
TOXIC = "from toy.numbers import mean\n\n\ndef test_sum():\n    assert mean([1, 2]) == 3\n"
PASSING = "def test_nothing():\n    pass\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("by_tests")
    toolchain_or_skip(folder)
    return folder


@pytest.fixture(scope="module")
def row(home: Path) -> TaskRow:
    task_row = broken_task(home, write_toy(home / "source"))
    save_dataset(home, "toy", [task_row], {"sources": []})
    return task_row


def finished(home: Path, name: str, task_id: str, patches: Mapping[str, bool]) -> None:
    """Write a finished run with one rollout for each patch."""
    run_dir = home / "runs" / name
    run_dir.mkdir(parents=True)
    (run_dir / "config.json").write_text(json.dumps({"seed": 0, "dataset": {"name": "toy"}}))
    with closing(SpoolSink(run_dir, epoch=1)) as sink:
        sink.emit(RunStarted, host="h", pid=1)
        for index, (patch, passed) in enumerate(patches.items()):
            roll_out(sink, task_id, index, passed=passed, patch=patch)


def perform(home: Path, name: str, config: AnyRun, *, epoch: int = 1) -> dict[str, Any]:
    """Perform a run; return its terminal event."""
    with open_context(home, name, config, epoch=epoch) as run:
        execute(config, run)
    return events(home, name)[-1]


def by_tests(runs: list[str], **settings: Any) -> AnyRun:
    merged = {"verifier.runs": runs, "sandbox.memory_mb": 512, "verifier.timeout_s": 120.0, **settings}
    return resolve("verify-by-tests", merged)


def scores(home: Path, name: str) -> dict[int, dict[str, Any]]:
    return {event["ref"]["index"]: event["score"] for event in events(home, name, "trajectory_scored")}


def passes(score: Mapping[str, Any]) -> tuple[int | None, int | None]:
    return score["regression_passes"], score["reproduction_passes"]


def writing(body: dict[str, Any], _number: int) -> Reply:
    """Respond as a testing agent that writes each of three tests in turn."""
    messages = body["messages"]
    if "ready?" in messages[-1]["content"]:
        return Reply(content="ready")
    assert "clamp is broken" in messages[1]["content"]
    if any(message["role"] == "assistant" for message in messages):
        return Reply(content=SUBMIT)
    content = (TEST, TOXIC, PASSING)[next(_turns) % 3]
    path = "/testbed/test_issue.py"
    return Reply(content=respond("file_editor", command="create", path=path, file_text=content))


_turns: Iterator[int]


@pytest.fixture(scope="module")
def tests_run(home: Path, row: TaskRow) -> str:
    """Name of a run in which testing agents wrote a good, a toxic and a useless test."""
    global _turns
    _turns = iter(range(100))
    with openai_server(writing) as server:
        settings = {
            "dataset.name": "toy", "dataset.split": row.split, "policy.type": "endpoint",
            "policy.endpoint": server.url, "policy.model": "m", "rollout.group_size": 3,
            "rollout.max_concurrent": 1, "sandbox.memory_mb": 512,
        }  # fmt: skip
        ended = perform(home, "written", resolve("write-tests", settings))
    assert ended["state"] == "succeeded", ended
    return "written"


def test_testing_agents_are_rewarded_for_tests_that_fail_on_the_unpatched_tree(
    home: Path, tests_run: str
) -> None:
    rollouts = events(home, tests_run, "trajectory_finished")
    outcomes = {
        content: (event["reward"], event["detail"].partition(":")[0])
        for event in rollouts
        for content in (TEST, TOXIC, PASSING)
        if content.splitlines()[-1].strip() in event["patch"]
    }
    assert outcomes == {TEST: (1.0, ""), TOXIC: (1.0, ""), PASSING: (0.0, "passes")}
    assert events(home, tests_run)[-1]["summary"]["solve_rate_last"] == pytest.approx(2 / 3)


@pytest.fixture(scope="module")
def verified(home: Path, row: TaskRow, tests_run: str) -> AnyRun:
    """Configuration of a run that verified three patches of another run by the written tests."""
    finished(home, "7", row.task.id, {GOOD: True, BREAKING: False, "": False})
    config = by_tests(["7"], **{"verifier.tests": [tests_run]})
    ended = perform(home, "v", config)
    assert ended["state"] == "succeeded", ended
    return config


def test_patches_are_scored_by_repository_tests_and_written_tests(
    home: Path, row: TaskRow, tests_run: str, verified: AnyRun
) -> None:
    scores_by_index = scores(home, "v")
    total = scores_by_index[0]["regression_tests"]
    assert total > 2
    assert {index: passes(score) for index, score in scores_by_index.items()} == {
        0: (total, 1), 1: (total - 1, 2), 2: (total, 0),
    }  # fmt: skip
    assert {index: score["regression_status"] for index, score in scores_by_index.items()} == {
        0: "ran", 1: "ran", 2: "no_change",
    }  # fmt: skip
    assert "the patch is empty" in scores_by_index[2]["detail"]
    assert [score["resolved"] for score in scores_by_index.values()] == [True, False, False]
    assert all(score["p_yes"] is None and not score["error"] for score in scores_by_index.values())
    examined = events(home, "v", "test_examined")
    assert {(event["source"], event["source_epoch"]) for event in examined} == {(tests_run, 1)}
    by_rejection = sorted((event["test"]["rejection"], event["test"]["good_passed"]) for event in examined)
    assert by_rejection == [("", 0), ("", 1), ("passes", 0)]
    summary = events(home, "v")[-1]["summary"]
    counts = [summary[name] for name in ("scored", "tests", "tests_kept", "tests_toxic")]
    assert counts == [3, 3, 2, 1]
    (alert,) = events(home, "v", "alert")
    assert (alert["code"], alert["task_ids"]) == ("toxic_tests", [row.task.id])


def test_later_attempt_scores_remaining_tasks_without_rerunning_tests(
    home: Path, verified: AnyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(home / "runs" / "v", home / "runs" / "w")
    first = scores(home, "w")
    spool = home / "runs" / "w" / SPOOL_NAME
    first_line = spool.read_bytes().splitlines(keepends=True)[0]
    calls: list[str] = []

    async def counted(runs: TestRuns, *given: Any, **named: Any) -> Any:
        calls.append("run")
        raise AssertionError

    monkeypatch.setattr(TestRuns, "run", counted)
    assert perform(home, "w", verified, epoch=2)["summary"]["scored"] == 3
    assert len(events(home, "w", "trajectory_scored")) == 3, "scored tasks are passed over"
    spool.write_bytes(first_line)
    assert (home / "runs" / "w" / REPORTS_NAME).is_dir()
    assert perform(home, "w", verified, epoch=3)["state"] == "succeeded"
    assert scores(home, "w") == first
    assert calls == []


def test_tests_of_a_testing_run_that_was_started_over_do_not_count(
    home: Path, tests_run: str, verified: AnyRun
) -> None:
    shutil.copytree(home / "runs" / "v", home / "runs" / "rewritten")
    spool = home / "runs" / tests_run / SPOOL_NAME
    toxic, content = TOXIC.splitlines()[-1].strip().encode(), spool.read_bytes()
    lines = [
        line
        for line in content.splitlines(keepends=True)
        if not (b'"trajectory_finished"' in line and toxic in line)
    ]
    spool.write_bytes(b"".join(lines))
    try:
        ended = perform(home, "rewritten", verified, epoch=2)
    finally:
        spool.write_bytes(content)
    assert ended["state"] == "succeeded", ended
    assert (ended["summary"]["tests"], ended["summary"]["tests_toxic"]) == (2, 0)


def test_reading_ends_when_the_run_is_stopped(home: Path, row: TaskRow) -> None:
    finished(home, "22", row.task.id, {GOOD: True})
    config = by_tests(["22"])
    assert isinstance(config, TestVerifierRun)
    with open_context(home, "unread", config) as run:
        run.control.stop("enough")
        with pytest.raises(RunStopped):
            TestVerification(config, run).read()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"verifier.runs": []}, "verifier.runs: no run is named"),
        ({"verifier.runs": ["404"]}, "verifier.runs: there is no run '404'"),
        ({"verifier.tests": ["404"]}, "verifier.tests: there is no run '404'"),
        ({"verifier.tests": ["5"]}, "verifier.tests: no test was written"),
        ({"verifier.phases": ["eval:heldout"]}, "no graded trajectories in these phases"),
    ],
)
def test_unverifiable_runs_fail_and_name_the_setting(
    home: Path, row: TaskRow, settings: dict[str, Any], message: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not (home / "runs" / "5").exists():
        finished(home, "5", row.task.id, {GOOD: True, new_file("other.py", "x = 1\n"): False})
    name = tmp_path_factory.mktemp("refused").name
    ended = perform(home, name, by_tests(["5"], **settings))
    assert ended["state"] == "failed"
    assert message in ended["reason"]


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ("write-tests", {"agent.prompt": "deepswe_v1"}, "only tests of the issue count"),
        ("collect", {"agent.prompt": "reproduction_v1"}, "tests written by agents do not count"),
        ("verify-by-tests", {"policy.checkpoint": "fresh:tiny"}, "unknown setting"),
        ("verify-by-tests", {"verifier.parallel": 4}, "unknown setting"),
        ("verify-by-tests", {"verifier.tests": ["../7"]}, "verifier.tests.0"),
    ],
)
def test_settings_without_effect_are_refused(recipe: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(recipe, settings)


def test_configurations_of_earlier_versions_are_read_as_judge_runs() -> None:
    config = resolve("verify", {}).model_dump(mode="json")
    del config["method"]
    assert parse_run_config(config).model_dump()["method"] == "judge"
