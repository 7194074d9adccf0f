"""The engine's command line: refusals, recorded failures and lazy imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.events.delivery.spool import read_lines
from engine.run import Launch, create_run_dir, run_attempt
from engine.threads import waiting_threads


@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        ("nope", {}, "unknown recipe 'nope'"),
        ("quickstart", {"trainer.iteration": 3}, "trainer.iteration: unknown setting"),
        ("quickstart", {"rollout.group_size": 1}, "at least 2"),
    ],
)
def test_an_invalid_recipe_creates_no_run_folder(
    tmp_path: Path, recipe: str, overrides: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        create_run_dir(recipe, overrides, home=tmp_path)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "content", ["", "{}", '{"run_id": "../x", "epoch": 1, "ingest_url": null, "token": "", "home": "/"}']
)
def test_a_broken_launch_file_is_refused_with_its_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "launch.json").write_text(content)
    with pytest.raises(ConfigError, match="launch.json"):
        Launch.load(tmp_path)


def test_launch_accepts_a_number_as_run_id(tmp_path: Path) -> None:
    launch = {"run_id": 7, "epoch": 2, "ingest_url": "http://127.0.0.1:1/", "token": "t", "home": "/h"}
    (tmp_path / "launch.json").write_text(json.dumps(launch))
    assert Launch.load(tmp_path).endpoint("events") == "http://127.0.0.1:1/api/v1/runs/7/events"


def test_a_missing_run_folder_prints_a_one_line_error(tmp_path: Path) -> None:
    """Start the engine in a separate process, as in production."""
    command = [sys.executable, "-m", "engine.run", "missing-folder"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    assert done.stderr.startswith("error: missing-folder is not a run folder")
    assert done.stderr.count("\n") == 1


def test_an_invalid_configuration_is_recorded_as_the_failure_reason(tmp_path: Path) -> None:
    run_dir = create_run_dir("quickstart-oracle", {}, home=tmp_path)
    (run_dir / "config.json").write_text('{"kind": "rollout", "name": "x", "colour": "red"}')
    assert run_attempt(run_dir, Launch.load(run_dir)) == 1
    events = [json.loads(line.data) for line in read_lines(run_dir / "events.jsonl")]
    assert [event["type"] for event in events] == ["run_finished"]
    assert events[0]["state"] == "failed"
    assert "colour: unknown setting" in events[0]["reason"]
    failure = json.loads((run_dir / "failure.json").read_text())
    assert failure == {"epoch": 1, "reason": events[0]["reason"]}


def test_scripted_runs_never_load_torch() -> None:
    script = "import sys, engine.run, engine.orchestrator.collect; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_waiting_threads_sleep_unless_a_policy_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert waiting_threads() == {"OMP_WAIT_POLICY": "PASSIVE"}
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert waiting_threads() == {"OMP_WAIT_POLICY": "ACTIVE"}
