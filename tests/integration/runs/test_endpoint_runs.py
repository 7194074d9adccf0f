"""Whole runs of the engine against a scripted endpoint: real sandboxes, tests and processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.config.policies import EndpointPolicyConfig
from engine.config.run import RolloutRun
from engine.datasets.store import load_dataset
from engine.inference.endpoint.keys import KEY
from engine.orchestrator import execute
from tests.fakes.openai_server import OpenAIServer, Reply, openai_server
from tests.integration import toy_yard
from tests.integration.toy_yard import engine_process, events, make_run_dir, open_context

SECRET = "correct-horse-battery-staple-4711"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data folder with the toy dataset."""
    return toy_yard.dataset_home(tmp_path_factory.mktemp("home"))


def of_type(run_dir: Path, name: str) -> list[dict[str, Any]]:
    return [event for event in events(run_dir) if event["type"] == name]


def run_of(server: OpenAIServer, *, native: bool = True, endpoint: str = "", **policy: Any) -> RolloutRun:
    settings = {"endpoint": endpoint or server.url, "model": "coder", "max_retries": 2, **policy}
    run = toy_yard.sampling(EndpointPolicyConfig(**settings))
    agent = {"tool_format": "native" if native else "xml", "prompt": "deepswe_v1"}
    return RolloutRun.model_validate(run.model_dump() | {"agent": run.agent.model_dump() | agent})


def written(tool: str, arguments: dict[str, Any], *, native: bool) -> Reply:
    usage = {"prompt_tokens": 1000, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 800}}
    if native:
        return Reply(content="I call.", calls=[(tool, json.dumps(arguments))], usage=usage)
    values = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in arguments.items())
    return Reply(content=f"I call.\n<function={tool}>\n{values}</function>", usage=usage)


def solving(home: Path, *, native: bool, look: str = "true") -> Callable[[dict[str, Any], int], Reply]:
    """Return a scripted model that looks around, applies the task's gold patch and submits."""
    rows = load_dataset(home, toy_yard.DATASET).split("train")

    def script(body: dict[str, Any], _number: int) -> Reply:
        first = next(message["content"] for message in body["messages"] if message["role"] == "user")
        row = next((row for row in rows if row.task.problem_statement in first), None)
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        if row is None:
            return Reply(content="ready")
        patch = f"cat > /tmp/p <<'EOF'\n{row.answer.gold_patch}\nEOF\ngit apply /tmp/p"
        steps = [("execute_bash", {"cmd": look}), ("execute_bash", {"cmd": patch})]
        tool, arguments = [*steps, ("finish", {"command": "submit"})][turn]
        return written(tool, arguments, native=native)

    return script


@pytest.mark.parametrize(("native", "stream"), [(True, True), (False, False)], ids=["native", "xml"])
def test_an_endpoint_solves_tasks_in_sandboxes(home: Path, native: bool, stream: bool) -> None:
    with openai_server(solving(home, native=native)) as server:
        prices: dict[str, Any] = {"input_price": 1.0, "cached_price": 0.1, "output_price": 10.0}
        config = run_of(server, native=native, stream=stream, **prices)
        with open_context(home, f"solves-{native}-{stream}", config) as run:
            assert execute(config, run) == 0
    finished = of_type(run.run_dir, "trajectory_finished")
    assert [event["reward"] for event in finished] == [1.0, 1.0]
    assert {event["termination"] for event in finished} == {"submitted"}
    steps = of_type(run.run_dir, "step_finished")
    assert {(step["prompt_tokens"], step["cached_tokens"], step["generated_tokens"]) for step in steps} == {
        (1000, 800, 50)
    }
    price = (200 * 1.0 + 800 * 0.1 + 50 * 10.0) / 1e6
    assert [event["cost"] for event in finished] == pytest.approx([3 * price, 3 * price])
    check, *requests = server.requests
    assert len(requests) == 6
    assert {"tools" in body for body in server.requests} == {native}
    assert check["model"] == "coder"
    if native:
        longest = max(requests, key=lambda body: len(body["messages"]))
        assert [message["role"] for message in longest["messages"][2:]] == ["assistant", "tool"] * 2
        assert {message["tool_call_id"] for message in longest["messages"] if message["role"] == "tool"} == {
            message["tool_calls"][0]["id"] for message in longest["messages"] if message.get("tool_calls")
        }


def environments_of(session: int) -> list[str]:
    """Return the environment of each process in a session, as shown by the kernel."""
    environments = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == session:
                environments.append(Path(f"/proc/{process.pid}/environ").read_text(errors="replace"))
    return environments


def test_key_is_in_no_process_environment_or_record(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = "env; cat /proc/*/environ | tr '\\0' '\\n'; echo end of look"
    solve = solving(home, native=True, look=look)
    sessions: list[int] = []
    snapshots: list[list[str]] = []

    def script(body: dict[str, Any], number: int) -> Reply:
        snapshots.append(environments_of(sessions[0]))
        return solve(body, number)

    with openai_server(script) as server:
        secrets = {"endpoints": {"lab": {"address": server.url, "key": SECRET}}}
        monkeypatch.setenv(KEY, f"unused-{SECRET}")
        run_dir = make_run_dir(home, "keys", run_of(server, endpoint="lab"))
        with engine_process(run_dir, secrets) as process:
            sessions.append(process.pid)
            assert process.wait(timeout=400) == 0
    assert len(snapshots) == 7
    assert all(any("PATH=" in environment for environment in processes) for processes in snapshots)
    assert SECRET not in str(snapshots)
    assert {headers["authorization"] for headers in server.headers} == {f"Bearer {SECRET}"}
    observations = [step["observation"] for step in of_type(run_dir, "step_finished") if step["index"] == 0]
    assert len(observations) == 2
    assert all("PATH=" in text and "end of look" in text for text in observations)
    recorded = "".join(path.read_text(errors="replace") for path in run_dir.rglob("*") if path.is_file())
    for forbidden in (SECRET, KEY):
        assert forbidden not in recorded


def test_a_wrong_key_fails_the_run_before_any_sandbox(home: Path) -> None:
    refusal = Reply(status=401, error={"message": "Incorrect API key provided: sk-abc***xyz"})
    with openai_server([refusal]) as server:
        config = run_of(server)
        with open_context(home, "wrong-key", config) as run:
            assert execute(config, run) == 1
    (last,) = of_type(run.run_dir, "run_finished")
    assert last["state"] == "failed"
    assert "refuses the key (401)" in last["reason"]
    assert of_type(run.run_dir, "trajectory_started") == []
    assert len(server.requests) == 1


def test_the_spend_limit_stops_the_run_with_its_reason(home: Path) -> None:
    with openai_server(solving(home, native=True)) as server:
        config = run_of(server, input_price=100.0, output_price=100.0, spend_limit=0.15)
        with open_context(home, "spend", config) as run:
            assert execute(config, run) == 0
    (last,) = of_type(run.run_dir, "run_finished")
    assert last["state"] == "stopped"
    assert "of policy.spend_limit $0.15" in last["reason"]
    assert last["summary"]["stopped_by"] == "spend_limit"
    assert len(server.requests) <= 1 + 2 + 2  # the check, two at 0.105 each, and two in flight


def test_wrong_calls_are_reported_to_the_model_and_full_context_ends_a_rollout(home: Path) -> None:
    solve = solving(home, native=True)
    full = Reply(status=400, error={"code": "context_length_exceeded", "message": "too long"})

    def script(body: dict[str, Any], number: int) -> Reply:
        calls = {
            2: [("execute_bash", '{"cmd": "ls')],
            4: [("finish", "{}"), ("finish", "{}")],
        }.get(len(body["messages"]))
        if calls:
            return Reply(calls=calls)
        return full if len(body["messages"]) > 4 else solve(body, number)

    with openai_server(script) as server:
        config = run_of(server)
        with open_context(home, "wrong-calls", config) as run:
            assert execute(config, run) == 0
    steps = of_type(run.run_dir, "step_finished")
    errors = {step["index"]: step["error"] for step in steps}
    assert "not valid JSON" in errors[0]
    assert "more than one tool call" in errors[1]
    finished = of_type(run.run_dir, "trajectory_finished")
    assert [(event["termination"], event["num_steps"]) for event in finished] == [("max_context", 2)] * 2


def with_settings(config: RolloutRun, section: str, **settings: Any) -> RolloutRun:
    return config.model_copy(update={section: getattr(config, section).model_copy(update=settings)})


def test_unreadable_calls_fail_the_run_early_and_name_the_setting(home: Path) -> None:
    bare = Reply(content='I look.\n{"name": "execute_bash", "arguments": {"cmd": "ls"}}')
    with openai_server([bare]) as server:
        config = with_settings(run_of(server, native=False), "collection", early_stop=2)
        with open_context(home, "unreadable", config) as run:
            assert execute(config, run) == 1
    (last,) = of_type(run.run_dir, "run_finished")
    assert last["state"] == "failed"
    assert "agent.tool_format is 'xml'" in last["reason"]


def test_command_line_run_samples_an_endpoint(tmp_path: Path) -> None:
    """Without server and configuration file: a recipe, an address, and the key in the environment."""

    def walk(body: dict[str, Any], _number: int) -> Reply:
        direction = "right" if len(body["messages"]) % 4 < 2 else "down"
        return Reply(content=f"I go.\nmove {direction}")

    with openai_server(walk) as server:
        settings = {
            "policy.type": "endpoint",
            "policy.endpoint": server.url,
            "policy.model": "walker",
            "environment.heldout_maps": 2,
            "environment.train_maps": 4,
            "rollout.group_size": 2,
        }
        flags = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        command = [sys.executable, "-m", "engine.run", "--recipe", "frozenlake-evaluate"]
        completed = subprocess.run(
            [*command, "--home", str(tmp_path), *flags],
            capture_output=True, text=True, timeout=400, env={**os.environ, KEY: SECRET},
        )  # fmt: skip
        assert completed.returncode == 0, completed.stderr
    assert {headers["authorization"] for headers in server.headers} == {f"Bearer {SECRET}"}
    (run_dir,) = (tmp_path / "runs").iterdir()
    finished = of_type(run_dir, "trajectory_finished")
    assert len(finished) == 4
    assert not {event["termination"] for event in finished} & {"model_error", "env_error"}
    assert all(step["tool"] == "move" for step in of_type(run_dir, "step_finished"))
    recorded = "".join(path.read_text(errors="replace") for path in run_dir.rglob("*") if path.is_file())
    assert SECRET not in recorded + completed.stdout + completed.stderr
