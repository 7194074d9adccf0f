"""Runs of kind ``verifier``: a real tiny model and a scripted endpoint judge rollouts of other runs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.config.recipes import resolve
from engine.config.run import VerifierRun
from engine.errors import ConfigError
from engine.events.types import RunFinished
from engine.orchestrator import execute
from engine.orchestrator.context import RunContext
from tests.builders.verifier_builders import NOTHING, TASKS, Source, by_model, roll_out, verifying
from tests.builders.verifier_builders import events as events_of
from tests.fakes.openai_server import Reply, openai_server


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.orchestrator.verification.following.POLL_S", 0.02)


def by_endpoint(url: str, **settings: Any) -> VerifierRun:
    policy = {"policy.type": "endpoint", "policy.endpoint": url, "policy.model": "m", "policy.max_retries": 0}
    config = resolve("verify", {"verifier.runs": ["7"], "verifier.parallel": 1, **policy, **settings})
    assert isinstance(config, VerifierRun)
    return config


def events(home: Path, kind: str = "") -> list[dict[str, Any]]:
    return events_of(home, "v", kind)


def scores(home: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    return {
        (event["source"], event["ref"]["task_id"], event["ref"]["index"]): event["score"]
        for event in events(home, "trajectory_scored")
    }


def answer(p_yes: float) -> Reply:
    listed = [("YES", math.log(p_yes)), ("NO", math.log1p(-p_yes))]
    top = [{"token": token, "logprob": logprob} for token, logprob in listed]
    content = [{"token": "YES", "logprob": top[0]["logprob"], "top_logprobs": top}]
    return Reply(content="YES", logprobs={"content": content})


def judging(body: dict[str, Any], _number: int) -> Reply:
    """Answer as an endpoint that judges only even-numbered patches to be right."""
    text = body["messages"][-1]["content"]
    if "ready?" in text:
        return Reply(content="ready")
    patch = text.partition("[PATCH]\n+ ")[2][:2]
    return answer(0.9 if int(patch[1]) % 2 == 0 else 0.2)


def record(home: Path, count: int) -> Source:
    """Record a run with rollouts of one task, of which the even-numbered ones passed."""
    source = Source(home)
    with source.attempt() as sink:
        for index in range(count):
            roll_out(sink, TASKS[0], index, passed=index % 2 == 0)
    return source


def perform(home: Path, config: VerifierRun, *, epoch: int = 1, code: int = 0) -> None:
    with verifying(home, config, epoch=epoch) as run:
        assert execute(config, run) == code, events(home)[-1]


def test_a_real_model_scores_every_trajectory_under_its_own_key(tmp_path: Path) -> None:
    source = Source(tmp_path)
    with source.attempt() as sink:
        for task in TASKS:
            for index in range(3):
                roll_out(sink, task, index, passed=index == 0)
        roll_out(sink, TASKS[0], 3, **NOTHING)
    perform(tmp_path, by_model())
    scored = scores(tmp_path)
    assert scored.keys() == {("7", task, index) for task in TASKS for index in range(3)}
    assert all(0 < score["p_yes"] < 1 and score["yes_logprob"] < 0 for score in scored.values())
    assert {key: score["resolved"] for key, score in scored.items()} == {key: key[2] == 0 for key in scored}
    ended = events(tmp_path)[-1]
    assert (ended["type"], ended["state"]) == ("run_finished", "succeeded")
    assert (ended["summary"]["scored"], ended["summary"]["resolved"]) == (6, 2)
    assert 0 <= ended["summary"]["auc"] <= 1


def test_a_perfect_endpoint_has_an_auc_of_1(tmp_path: Path) -> None:
    record(tmp_path, 4)
    with openai_server(judging) as server:
        config = by_endpoint(server.url, **{"policy.input_price": 1.0, "policy.output_price": 1.0})
        perform(tmp_path, config)
    assert {key[2]: score["p_yes"] for key, score in scores(tmp_path).items()} == pytest.approx(
        {0: 0.9, 1: 0.2, 2: 0.9, 3: 0.2}
    )
    summary = events(tmp_path)[-1]["summary"]
    assert (summary["auc"], summary["within_task_auc"]) == (1.0, 1.0)
    assert summary["ece"] == pytest.approx(0.15)
    assert summary["cost"] == pytest.approx((1 + 4) * 120 / 1e6), (
        "the endpoint's test request and four answers"
    )


def test_only_final_records_of_a_restarted_source_are_scored(tmp_path: Path) -> None:
    """The source was restarted, and a lost rollout was repeated."""
    source = Source(tmp_path)
    with source.attempt() as sink:
        roll_out(sink, TASKS[0], 0, patch="+ old\n")
        roll_out(sink, TASKS[1], 5)
    with source.attempt(2) as sink:
        roll_out(sink, TASKS[0], 0, **NOTHING)
        roll_out(sink, TASKS[0], 0, passed=False)
    perform(tmp_path, by_model())
    scored = scores(tmp_path)
    assert scored.keys() == {("7", TASKS[0], 0)}
    assert scored["7", TASKS[0], 0]["resolved"] is False


@contextmanager
def in_background(config: VerifierRun, run: RunContext) -> Iterator[None]:
    """Perform a run in another thread and require its success."""
    with ThreadPoolExecutor(1) as pool:
        performed = pool.submit(execute, config, run)
        yield
        assert performed.result(timeout=240) == 0


def wait_for_scores(home: Path, count: int) -> None:
    deadline = time.monotonic() + 240
    while len(scores(home)) < count:
        assert time.monotonic() < deadline, events(home)[-1]
        time.sleep(0.05)


def test_a_running_source_is_followed_to_its_end(tmp_path: Path) -> None:
    source = Source(tmp_path)
    config = by_model(**{"verifier.follow": True})
    with source.attempt() as sink, verifying(tmp_path, config) as run:
        with in_background(config, run):
            for index in range(3):
                roll_out(sink, TASKS[0], index, passed=index == 0)
                wait_for_scores(tmp_path, index + 1)
            sink.emit(RunFinished, state="failed", reason="killed")
        waiting = [event["message"] for event in events(tmp_path, "run_progress")]
    assert "scored; waiting for more trajectories of run 7" in waiting
    assert len(events(tmp_path, "trajectory_scored")) == len(scores(tmp_path)) == 3
    assert events(tmp_path)[-1]["state"] == "succeeded"


def test_removing_a_followed_run_loses_only_its_unfinished_rollouts(tmp_path: Path) -> None:
    removed, kept = Source(tmp_path), Source(tmp_path, "8")
    config = by_model(**{"verifier.follow": True, "verifier.runs": ["7", "8"]})
    with kept.attempt() as sink, verifying(tmp_path, config) as run, in_background(config, run):
        with removed.attempt() as other:
            roll_out(other, TASKS[0], 0)
            wait_for_scores(tmp_path, 1)
        # renamed, as a folder removed file by file can be read in between
        removed.run_dir.rename(tmp_path / "removed")
        roll_out(sink, TASKS[0], 1)
        wait_for_scores(tmp_path, 2)
        sink.emit(RunFinished, state="succeeded")
    assert [event["code"] for event in events(tmp_path, "alert")] == ["verifier_source_lost"]
    ended = events(tmp_path)[-1]
    assert (ended["state"], ended["summary"]["scored"]) == ("succeeded", 2)


def test_a_repeated_trajectory_is_scored_again_under_its_attempt(tmp_path: Path) -> None:
    source = record(tmp_path, 1)
    config = by_model()
    perform(tmp_path, config)
    with source.attempt(2) as sink:
        roll_out(sink, TASKS[0], 0, passed=False)
    perform(tmp_path, config, epoch=2)
    recorded = [
        (event["source_epoch"], event["score"]["resolved"]) for event in events(tmp_path, "trajectory_scored")
    ]
    assert recorded == [(1, True), (2, False)]


def test_a_later_attempt_scores_only_missing_and_failed_trajectories(tmp_path: Path) -> None:
    record(tmp_path, 4)

    def sometimes_unclear(body: dict[str, Any], number: int) -> Reply:
        unclear = [{"token": "Hm", "logprob": -0.1, "top_logprobs": []}]
        text = body["messages"][-1]["content"]
        return Reply(content="Hm", logprobs={"content": unclear}) if "+ a2" in text else judging(body, number)

    with openai_server(sometimes_unclear) as server:
        prices = {"policy.input_price": 1.0, "policy.output_price": 1.0}
        config = by_endpoint(server.url, **{"verifier.max_attempts": 2, **prices})
        perform(tmp_path, config)
        first = scores(tmp_path)
        assert {key[2] for key, score in first.items() if score["p_yes"] is None} == {2}
        assert "no <judgement>" in first["7", TASKS[0], 2]["error"]
        assert first["7", TASKS[0], 2]["attempts"] == 2
        (alert,) = events(tmp_path, "alert")
        assert alert["code"] == "verifier_scores_missing"
        summary = events(tmp_path)[-1]["summary"]
        assert summary["without_score"] == 1
        assert summary["cost"] == pytest.approx((1 + 3 + 2) * 120 / 1e6), (
            "answers without a score are paid, too"
        )
        server.script = judging
        num_requests = len(server.requests)
        perform(tmp_path, config, epoch=2)
        assert len(server.requests) == num_requests + 2, "a check and the one that had no score"
    assert scores(tmp_path)["7", TASKS[0], 2]["p_yes"] == pytest.approx(0.9)
    assert events(tmp_path)[-1]["summary"]["scored"] == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"verifier.runs": []}, "no run is named"),
        ({"verifier.runs": ["8"]}, "no run '8'"),
        ({"verifier.phases": ["eval:heldout"]}, "no graded trajectories"),
        ({"verifier.max_context": 4096}, "exceed the 2048"),
    ],
)
def test_unverifiable_configurations_fail_with_the_setting(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    record(tmp_path, 1)
    perform(tmp_path, by_model(**settings), code=1)
    ended = events(tmp_path)[-1]
    assert ended["state"] == "failed"
    assert ended["reason"].startswith("verifier.")
    assert message in ended["reason"]


def test_a_trajectory_of_a_missing_task_has_an_error_of_its_own(tmp_path: Path) -> None:
    source = Source(tmp_path)
    with source.attempt() as sink:
        roll_out(sink, TASKS[0], 0)
        roll_out(sink, "c" * 16, 0)
    perform(tmp_path, by_model())
    scored = scores(tmp_path)
    assert scored["7", TASKS[0], 0]["p_yes"] is not None
    lost = scored["7", "c" * 16, 0]
    assert lost["p_yes"] is None
    assert "is not in the datasets of run 7 ('toy')" in lost["error"]
    assert events(tmp_path)[-1]["summary"]["without_score"] == 1


ENDPOINT = {"policy.type": "endpoint", "policy.endpoint": "e", "policy.model": "m"}


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"policy.temperature": 0.7}, "policy.temperature"),
        ({"policy.engine": "vllm"}, "policy.engine"),
        ({"verifier.answers": "forced"}, "verifier.answers"),
        ({**ENDPOINT, "verifier.answers": "forced", "verifier.max_response": 64}, "verifier.max_response"),
        ({**ENDPOINT, "policy.stream": True}, "policy.stream"),
        ({"policy.type": "oracle"}, "policy.type"),
        ({"verifier.runs": ["../7"]}, "verifier.runs.0"),
    ],
)
def test_settings_that_judges_do_not_support_are_refused(settings: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve("verify", settings)
    assert [problem.setting for problem in refused.value.problems] == [setting]


def test_a_stopped_run_keeps_and_counts_its_scores(tmp_path: Path) -> None:
    record(tmp_path, 6)
    contexts: list[RunContext] = []

    def stopping(body: dict[str, Any], number: int) -> Reply:
        if number == 3:
            contexts[0].control.stop("somebody asked for it")
            return Reply(hang="before")
        return judging(body, number)

    with openai_server(stopping) as server:
        config = by_endpoint(server.url)
        with verifying(tmp_path, config) as run:
            contexts.append(run)
            assert execute(config, run) == 0
    ended = events(tmp_path)[-1]
    assert (ended["state"], ended["reason"]) == ("stopped", "somebody asked for it")
    assert ended["summary"]["scored"] == len(scores(tmp_path)) == 2
    assert ended["summary"]["trajectories"] == 6


def test_a_spend_limit_stops_the_run_and_the_next_attempt_keeps_its_scores(tmp_path: Path) -> None:
    record(tmp_path, 6)
    prices = {"policy.input_price": 1.0, "policy.output_price": 1.0, "policy.spend_limit": 4e-4}
    with openai_server(judging) as server:
        config = by_endpoint(server.url, **prices)
        perform(tmp_path, config)
        ended = events(tmp_path)[-1]
        assert (ended["state"], ended["summary"]["stopped_by"]) == ("stopped", "spend_limit")
        first = scores(tmp_path)
        assert 0 < len(first) < 6
        richer = by_endpoint(server.url, **{**prices, "policy.spend_limit": 1.0})
        perform(tmp_path, richer, epoch=2)
    assert events(tmp_path)[-1]["summary"]["scored"] == 6
    assert {key: scores(tmp_path)[key] for key in first} == first
    prompts = [body["messages"][-1]["content"] for body in server.requests]
    assert len([text for text in prompts if "ready?" not in text]) == 6
