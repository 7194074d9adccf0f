"""Every kind of sandbox failure through the real rollout and grader: retries, exclusion, blame."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine import errors
from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.errors import PatchError, SandboxError, SandboxMemoryError
from engine.events.failures import POLICIES, policy_of
from engine.grading.grader import Grader
from engine.inference.scripted.policies import OraclePolicy
from engine.orchestrator.watch.metrics import is_infrastructure
from engine.rollout import GroupRequest
from engine.sandbox.base import ExecResult
from engine.sandbox.failures import Decision, decide
from engine.sandbox.pool.pool import SandboxPool
from engine.types import Grade, TaskRow, TerminationReason, Trajectory, Verdict
from tests.builders.rollout_builders import SOURCE, SUBMIT, TextPolicy, make_row, respond, swe_scheduler
from tests.fakes.memory_sandbox import MemoryBackend, MemorySandbox

FILES = {"/testbed/pkg/m.py": SOURCE.encode()}


def sandbox_errors(base: type[SandboxError] = SandboxError) -> list[type[SandboxError]]:
    return [base, *(error for child in base.__subclasses__() for error in sandbox_errors(child))]


ERRORS = {error.kind: error for error in sandbox_errors() if error.__module__ == errors.__name__}
ATTEMPTS = {
    "queue_timeout": 1, "image": 2, "start": 3, "start_timeout": 3, "died": 3, "memory": 2, "evicted": 3,
    "transport": 3, "resource": 2, "infrastructure": 3,
}  # fmt: skip
OWN_DOING = {"memory", "resource"}


async def roll(backend: MemoryBackend, policy: TextPolicy | OraclePolicy, **sandbox: int) -> Trajectory:
    scheduler = swe_scheduler(backend, policy, sandbox=SandboxConfig(**sandbox))
    (group,) = await scheduler.collect([GroupRequest(row=make_row(), iteration=0, phase="train", size=1)])
    return group.trajectories[0]


async def grade(backend: MemoryBackend, **sandbox: int) -> Grade:
    config = SandboxConfig(**sandbox)
    row = make_row()
    answer = replace(
        row.answer, fail_to_pass=("t.py::test_a",), test_command="pytest", log_parser="parse_log_pytest"
    )
    grader = Grader(backend=SandboxPool(backend, config), config=GradingConfig(), sandbox=config, run_id="r1")
    return await grader.grade(TaskRow(task=row.task, answer=answer, split="train"), "")


def test_kinds_of_errors_and_failure_policies_match() -> None:
    assert set(POLICIES) == set(ERRORS) == set(ATTEMPTS)
    assert {kind for kind, policy in POLICIES.items() if policy.own_doing_after} == OWN_DOING
    assert policy_of("invented later") is POLICIES["infrastructure"]


@pytest.mark.parametrize(
    ("kinds", "retries", "attempts"), [(("memory",), 0, 1), (("memory", "died", "evicted"), 2, 3)]
)
async def test_a_single_sandbox_out_of_memory_is_not_blamed_on_the_agent(
    monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...], retries: int, attempts: int
) -> None:
    monkeypatch.setattr("engine.rollout.rollout._RETRY_PAUSE_S", 0.0)
    lost = MemoryBackend(FILES, faults=[ERRORS[kind]("lost") for kind in kinds])
    trajectory = await roll(lost, OraclePolicy(), start_retries=retries)
    assert (trajectory.termination, trajectory.failure) == (TerminationReason.ENV_ERROR, kinds[-1])
    assert trajectory.attempts == attempts
    lost = MemoryBackend(FILES, faults=[ERRORS[kind]("lost") for kind in kinds])
    assert (await grade(lost, start_retries=retries)).reward is None


@pytest.mark.parametrize("kind", sorted(ATTEMPTS))
async def test_rollouts_end_after_repeated_failures(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.rollout.rollout._RETRY_PAUSE_S", 0.0)
    backend = MemoryBackend(FILES, faults=[ERRORS[kind](f"fault {n}") for n in range(9)])
    trajectory = await roll(backend, OraclePolicy())
    assert (trajectory.attempts, trajectory.failure) == (ATTEMPTS[kind], kind)
    assert f"fault {ATTEMPTS[kind] - 1}" in trajectory.error
    if kind in OWN_DOING:
        assert (trajectory.termination, trajectory.reward) == (TerminationReason.ENV_TIMEOUT, 0.0)
        assert not is_infrastructure(trajectory)
        assert "the agent's own doing" in trajectory.error
    else:
        assert (trajectory.termination, trajectory.grade) == (TerminationReason.ENV_ERROR, None)
        assert is_infrastructure(trajectory)


@pytest.mark.parametrize("kind", sorted(ATTEMPTS))
async def test_gradings_end_after_repeated_failures(kind: str) -> None:
    backend = MemoryBackend(FILES, faults=[ERRORS[kind](f"fault {n}") for n in range(9)])
    result = await grade(backend)
    assert len(backend._faults) == 9 - ATTEMPTS[kind]
    if kind in OWN_DOING:
        assert (result.verdict, result.reward) == (Verdict.FAILED, 0.0)
    else:
        assert (result.verdict, result.reward) == (Verdict.INFRA_ERROR, None)
    assert f"fault {ATTEMPTS[kind] - 1}" in result.detail


async def test_a_single_failure_of_each_kind_costs_only_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.rollout.rollout._RETRY_PAUSE_S", 0.0)
    for kind, error in ERRORS.items():
        if kind != "queue_timeout":
            trajectory = await roll(MemoryBackend(FILES, faults=[error("once")]), OraclePolicy())
            assert (trajectory.reward, trajectory.attempts, trajectory.failure) == (1.0, 2, ""), kind


async def test_commands_that_exhaust_memory_twice_fail_the_rollout() -> None:
    async def hungry(_command: str) -> ExecResult:
        raise SandboxMemoryError("the sandbox ended while it was in use: 512 MiB")

    policy = TextPolicy([respond("execute_bash", cmd="eat"), SUBMIT])
    trajectory = await roll(MemoryBackend(FILES, command=hungry), policy)
    assert (trajectory.termination, trajectory.attempts) == (TerminationReason.ENV_TIMEOUT, 2)
    assert trajectory.grade is not None
    assert (trajectory.grade.verdict, trajectory.reward, trajectory.failure) == (
        Verdict.FAILED,
        0.0,
        "memory",
    )
    assert "512 MiB" in trajectory.grade.detail


def test_decisions_follow_the_history_of_failures() -> None:
    assert decide(["memory"], retries=2) is Decision.RETRY
    assert decide(["memory", "memory"], retries=2) is Decision.COUNT
    assert decide(["died", "memory", "memory"], retries=2) is Decision.COUNT
    assert decide(["died", "image", "died"], retries=9) is Decision.RETRY
    assert decide(["image", "died", "image"], retries=9) is Decision.EXCLUDE
    assert decide(["died", "died"], retries=1) is Decision.EXCLUDE
    assert decide(["died", "start", "died"], retries=2) is Decision.EXCLUDE, "kinds count together"


async def test_changes_that_cannot_become_a_patch_count_against_the_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise an agent could avoid a reward of 0 by an unreadable or a very large file."""

    async def too_much(_box: MemorySandbox) -> str:
        raise PatchError("the files changed below /testbed hold more than 64 MiB")

    monkeypatch.setattr(MemorySandbox, "diff", too_much)
    trajectory = await roll(MemoryBackend(FILES), OraclePolicy())
    assert (trajectory.attempts, trajectory.termination) == (1, TerminationReason.SUBMITTED)
    assert trajectory.grade is not None
    assert (trajectory.grade.verdict, trajectory.reward, trajectory.patch) == (Verdict.PATCH_FAILED, 0.0, "")
    assert "more than 64 MiB" in trajectory.grade.detail
    assert not is_infrastructure(trajectory)
