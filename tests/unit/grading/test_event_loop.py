"""Slow preparations in threads, and lifetimes of sandboxes that cover all their steps."""

from __future__ import annotations

import threading
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, cast

import pytest

from engine.config.rollout import AgentConfig, GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.errors import DatasetError, SandboxError
from engine.grading import grader as grading
from engine.grading.counterfactual import test_files
from engine.grading.execution import RunExecutor
from engine.grading.grader import Grader
from engine.grading.solution import gold_patch
from engine.rollout.environments import SweEnvironments
from engine.sandbox import integrity
from engine.sandbox.base import ExecResult, Sandbox, SandboxBackend, SandboxSpec
from engine.sandbox.integrity import SCRUB_S
from engine.sandbox.pool.pool import SandboxPool
from engine.types import RolloutKey
from tests.builders.rollout_builders import make_row

SANDBOX = SandboxConfig()
TIMEOUT_S = 1000.0


class Box:
    """A sandbox in which every command succeeds."""

    spec = SandboxSpec(image="x")

    async def exec(self, _command: list[str], **_options: Any) -> ExecResult:
        return ExecResult(exit_code=0, stdout=b"", stderr=b"", timed_out=False, seconds=0.0, dropped_bytes=0)

    async def hide(self, _paths: Any) -> None: ...

    async def apply_patch(self, _patch: str) -> None: ...

    async def adopt(self) -> None: ...


class Backend:
    """A backend that records requested specs and starts nothing."""

    name = "none"

    def __init__(self) -> None:
        self.specs: list[SandboxSpec] = []

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        self.specs.append(spec)
        raise SandboxError("nothing starts here")


async def test_patches_are_parsed_and_rows_are_checked_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def touched(_patch: str) -> list[str]:
        threads.append(threading.current_thread())
        return ["a.py"]

    monkeypatch.setattr(integrity, "touched", touched)
    monkeypatch.setattr(test_files, "touched", touched)
    box, row = cast(Sandbox, Box()), make_row()
    await integrity.prepare_for_agent(box, setup_patch="x")
    await integrity.prepare_for_grading(box, setup_patch="x")
    await test_files.read_test_files(box, replace(row, answer=replace(row.answer, test_patch="x")))

    def check(_row: Any) -> None:
        threads.append(threading.current_thread())
        raise DatasetError("no parser")

    monkeypatch.setattr(grading, "check_gradable", check)
    grader = Grader(
        backend=cast(SandboxBackend, Backend()), config=GradingConfig(), sandbox=SANDBOX, run_id="1"
    )
    with pytest.raises(DatasetError, match="no parser"):
        await grader.grade(row, "")
    assert len(threads) == 4
    assert threading.main_thread() not in threads


async def test_sandboxes_outlive_their_step_limits_and_have_the_task_environment() -> None:
    backend, row = Backend(), make_row()
    row = replace(row, task=replace(row.task, env={"MODE": "fast"}))
    fake = cast(SandboxBackend, backend)
    runs = RunExecutor(backend=fake, config=GradingConfig(), sandbox=SANDBOX, run_id="1")
    with pytest.raises(SandboxError, match="nothing starts here"):
        await runs.execute(row, "", timeout_s=TIMEOUT_S)
    assert all(spec.limits.lifetime_s > SCRUB_S + TIMEOUT_S for spec in backend.specs)
    answer = replace(row.answer, gold_patch="", metadata={"solution": "true"})
    with pytest.raises(SandboxError, match="nothing starts here"):
        await gold_patch(
            replace(row, answer=answer), backend=fake, sandbox=SANDBOX, run_id="1", timeout_s=TIMEOUT_S
        )
    assert backend.specs[-1].limits.lifetime_s > 60 + TIMEOUT_S
    environments = SweEnvironments(
        pool=cast(SandboxPool, None), grader=cast(Any, None), agent=AgentConfig(), sandbox=SANDBOX, run_id="1"
    )
    key = RolloutKey(iteration=0, phase="train", task_id=row.task.id, index=0)
    specs = [*backend.specs, environments._spec(key, row, tests_s=0.0)]
    assert all(spec.env == {"MODE": "fast"} for spec in specs)
