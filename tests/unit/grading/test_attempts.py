"""Attempts at a grading whose sandboxes keep failing: bounded, whatever fails."""

from __future__ import annotations

import pytest

from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.errors import SandboxDiedError, SandboxError, SandboxMemoryError, SandboxStartError
from engine.grading.execution import RunExecutor, RunResult, unjudged
from engine.sandbox.local.backend import LocalBackend
from engine.types import Verdict


class Attempts:
    """An attempt that raises given errors in turn, then passes."""

    def __init__(self, *errors: SandboxError) -> None:
        self.left, self.made = list(errors), 0

    async def __call__(self) -> RunResult:
        self.made += 1
        if self.left:
            raise self.left.pop(0)
        return unjudged(Verdict.PASSED, "")


def executor(*, retries: int) -> RunExecutor:
    backend: LocalBackend = None  # type: ignore[assignment]  # no sandbox is opened
    sandbox = SandboxConfig(start_retries=retries)
    return RunExecutor(backend=backend, config=GradingConfig(), sandbox=sandbox, run_id="r")


@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_infrastructure_failures_end_after_the_configured_attempts(retries: int) -> None:
    attempt = Attempts(*[SandboxStartError("no room")] * 50)
    with pytest.raises(SandboxStartError, match="no room"):
        await executor(retries=retries).repeated(attempt)
    assert attempt.made == retries + 1


async def test_failures_of_different_kinds_count_together() -> None:
    attempt = Attempts(*[SandboxStartError("no room"), SandboxDiedError("gone")] * 25)
    with pytest.raises(SandboxStartError):
        await executor(retries=2).repeated(attempt)
    assert attempt.made == 3


async def test_a_run_after_a_failure_counts() -> None:
    attempt = Attempts(SandboxStartError("no room"), SandboxDiedError("gone"))
    assert (await executor(retries=2).repeated(attempt)).verdict is Verdict.PASSED


async def test_memory_used_up_twice_is_the_patch_s_own_doing() -> None:
    attempt = Attempts(*[SandboxMemoryError("512 MiB")] * 50)
    result = await executor(retries=5).repeated(attempt)
    assert (result.verdict, result.score, attempt.made) == (Verdict.FAILED, 0.0, 2)
    assert "the agent's own doing" in result.detail
