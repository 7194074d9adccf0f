"""Rollouts graded in their own sandbox: before it closes, with any patch, again if it dies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.config.sandbox import SandboxConfig
from engine.errors import PatchError, SandboxDiedError, SandboxMemoryError
from engine.inference.scripted.policies import OraclePolicy
from engine.rollout import GroupRequest
from engine.sandbox.base import Sandbox
from engine.types import Grade, TaskRow, TerminationReason, Trajectory, Verdict
from tests.builders.rollout_builders import SOURCE, ChatScript, PatchGrader, make_row, respond, swe_scheduler
from tests.fakes.memory_sandbox import MemoryBackend, MemorySandbox

FILES = {"/testbed/pkg/m.py": SOURCE.encode()}


class InPlace(PatchGrader):
    """Grader that passes every rollout in place; each of ``errors`` fails a grading first."""

    timeout_s = 500.0

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)
        self.begun: list[Sandbox] = []
        self.seen: list[tuple[Sandbox, str, bool]] = []

    def own_box(self, row: TaskRow, *, evaluation: bool = False) -> Any:
        return _Judge(self)


class _Judge:
    timeout_s = InPlace.timeout_s

    def __init__(self, grader: InPlace) -> None:
        self.grader = grader

    async def begin(self, box: Sandbox) -> None:
        self.grader.begun.append(box)

    async def grade(self, box: MemorySandbox, patch: str) -> Grade:
        self.grader.seen.append((box, patch, box.closed))
        if self.grader.errors:
            raise self.grader.errors.pop(0)
        return Grade(verdict=Verdict.PASSED, reward=1.0)


async def roll(grader: InPlace, policy: Any = None, **changes: Any) -> Trajectory:
    backend = changes.pop("backend", None) or MemoryBackend(FILES)
    scheduler = swe_scheduler(backend, policy or OraclePolicy(), grader=grader, **changes)
    (group,) = await scheduler.collect([GroupRequest(row=make_row(), iteration=0, phase="train", size=1)])
    return group.trajectories[0]


async def test_the_sandbox_is_inspected_before_the_agent_starts_and_open_in_grading() -> None:
    grader = InPlace()
    trajectory = await roll(grader)
    ((box, patch, closed),) = grader.seen
    assert grader.begun == [box]
    assert (trajectory.reward, closed, grader.graded) == (1.0, False, [])
    assert patch == trajectory.patch != ""
    assert isinstance(box, MemorySandbox)
    assert box.closed
    assert box.spec.limits.lifetime_s > grader.timeout_s + 1200.0


async def test_rollouts_without_a_patch_are_graded_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def too_large(_box: MemorySandbox) -> str:
        raise PatchError("the changes are too large")

    monkeypatch.setattr(MemorySandbox, "diff", too_large)
    grader = InPlace()
    trajectory = await roll(grader)
    assert trajectory.grade is not None
    assert (trajectory.reward, trajectory.grade.detail) == (1.0, "the changes are too large")
    assert [patch for _, patch, _ in grader.seen] == [""]


async def test_a_sandbox_that_dies_in_grading_causes_another_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.rollout.rollout._RETRY_PAUSE_S", 0.0)
    grader = InPlace(SandboxDiedError("node lost"))
    trajectory = await roll(grader)
    assert (trajectory.attempts, trajectory.reward, len(grader.seen)) == (2, 1.0, 2)
    lost = await roll(InPlace(*[SandboxDiedError("node lost")] * 9), sandbox=SandboxConfig(start_retries=1))
    assert (lost.termination, lost.grade) == (TerminationReason.ENV_ERROR, None)
    exhausted = await roll(InPlace(*[SandboxMemoryError("killed")] * 9))
    assert (exhausted.attempts, exhausted.reward) == (2, 0.0)
    assert "the agent's own doing" in exhausted.error


async def test_errors_of_the_grader_do_not_fail_the_rollout() -> None:
    trajectory = await roll(InPlace(ZeroDivisionError("bug")))
    assert trajectory.grade is not None
    assert (trajectory.grade.verdict, trajectory.grade.reward) == (Verdict.INFRA_ERROR, None)
    assert (trajectory.termination, trajectory.attempts) == (TerminationReason.SUBMITTED, 1)


async def test_only_the_last_attempt_is_graded() -> None:
    grader = InPlace()
    policy = ChatScript(lambda _context: respond("execute_bash", cmd="true"))
    trajectory = await roll(grader, policy, retry_temperatures=(0.1, 0.2))
    assert trajectory.termination is TerminationReason.MAX_STEPS
    assert (trajectory.attempts, trajectory.reward) == (3, 1.0)
    assert len(grader.begun) == 3
    assert [box for box, _, _ in grader.seen] == grader.begun[-1:]


async def test_evaluations_are_graded_as_evaluations() -> None:
    flags: list[bool] = []

    class FlagGrader(InPlace):
        def own_box(self, row: TaskRow, *, evaluation: bool = False) -> Any:
            flags.append(evaluation)
            return super().own_box(row)

    scheduler = swe_scheduler(MemoryBackend(FILES), OraclePolicy(), grader=FlagGrader())
    row = replace(make_row(), split="heldout")
    await scheduler.collect([GroupRequest(row=row, iteration=0, phase="eval:heldout", size=1)])
    assert flags == [True]
