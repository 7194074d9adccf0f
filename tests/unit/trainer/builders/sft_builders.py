"""Stored trajectories of the quickstart policy's format, with and without token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.config.learning.fine_tuning import ConversationConfig
from engine.config.run import FineTuneRun, parse_run_config
from engine.events.stored_trajectories import (
    TRAJECTORIES_FILE,
    StoredStep,
    StoredTrajectory,
    write_trajectories,
)
from engine.events.token_block import TokenBlock
from engine.models.chat.base import Chat
from engine.tools.rendering import render_response
from engine.trainer.sft.recorded import ConversationRenderer
from engine.types import TerminationReason, ToolCall, Verdict
from tests.unit.environments.lake_builders import attempt

COMPACT = ConversationConfig(prompt="compact_v1")


def step(thought: str, tool: str, observation: str = "", **arguments: Any) -> StoredStep:
    """Return a turn whose response is a thinking block followed by the call in XML."""
    call = ToolCall(name=tool, arguments=arguments)
    return StoredStep(
        thought=thought,
        response=render_response(thought, call, "xml"),
        tool=tool,
        arguments=arguments,
        observation=observation,
    )


def trajectory(number: int, *, task: int | None = None, **changes: Any) -> StoredTrajectory:
    """Return a trajectory of three turns without token ids."""
    task = number if task is None else task
    view = {"command": "view", "path": f"/testbed/a{number}.py", "view_range": [1, 3]}
    edit = {
        "command": "str_replace",
        "path": f"/testbed/a{number}.py",
        "old_str": f"return {number}",
        "new_str": f"return {number + 1}",
    }
    values: dict[str, Any] = {
        "id": number,
        "run": 1,
        "model": "builtin:quickstart",
        "task_id": f"t{task}",
        "instance_id": f"task-{task}",
        "problem_statement": f"a{number}.py: the number is wrong",
        "verdict": Verdict.PASSED,
        "reward": 1.0,
        "termination": TerminationReason.SUBMITTED,
        "patch": f"+    return {number + 1}",
        "steps": [
            step("look at lines 1-3", "file_editor", f"1\treturn {number}", **view),
            step("line 1: off by one", "file_editor", "edited", **edit),
            step("done", "finish", command="submit"),
        ],
    }
    return StoredTrajectory(**{**values, **changes})


def with_ids(chat: Chat, stored: StoredTrajectory) -> StoredTrajectory:
    """Return the trajectory with the ids of a policy that sampled its responses."""
    record = ConversationRenderer(chat, COMPACT).render(stored)
    return stored.model_copy(update={"tokens": TokenBlock.of(record)})


def run_config(**changes: Any) -> FineTuneRun:
    """Return the configuration of a run that takes seconds."""
    trainer = {
        "start": "builtin:quickstart",
        "epochs": 2,
        "batch_size": 4,
        "max_tokens": 512,
        "learning_rate": 1e-3,
        "threads": 1,
        "device": "cpu",
        **changes.pop("trainer", {}),
    }
    data = {
        "kind": "sft",
        "data": "trajectories",
        "name": "t",
        "trainer": trainer,
        "conversation": {"prompt": "compact_v1"},
        **changes,
    }
    config = parse_run_config(data)
    assert isinstance(config, FineTuneRun)
    return config


def put(home: Path, name: str, trajectories: list[StoredTrajectory]) -> Path:
    """Write a run folder with its trajectories."""
    run_dir = home / "runs" / name
    run_dir.mkdir(parents=True)
    write_trajectories(run_dir / TRAJECTORIES_FILE, trajectories)
    return run_dir


def perform(
    home: Path, name: str, config: FineTuneRun, *, code: int = 0, **attempted: Any
) -> list[dict[str, Any]]:
    """Run one attempt in this process and return the events of all attempts."""
    exit_code, events = attempt(home, name, config, **attempted)
    assert exit_code == code
    return events
