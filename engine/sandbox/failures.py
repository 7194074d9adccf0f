"""Consequences of a sandbox failure: retry, exclusion, or a reward of 0.

    failures of one rollout or grading so far ─▶ decide ─▶ retry    in a fresh sandbox
                                                         exclude  infrastructure: no reward, out of its group
                                                         count    the agent's own doing: reward 0

Rollouts and grading share these rules; ``engine.events.failures`` is the table they read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import TypeVar

from engine.errors import SandboxError
from engine.events.failures import policy_of

T = TypeVar("T")


class Decision(StrEnum):
    """Consequence of a failure."""

    RETRY = "retry"
    EXCLUDE = "exclude"
    COUNT = "count"


def decide(failures: Sequence[str], *, retries: int) -> Decision:
    """Decide between retry, exclusion and counting after a failure.

    Args:
        failures: kinds of failure of this rollout or grading, in order; the last one just happened.
        retries: fresh sandboxes the run allows in all (``sandbox.start_retries``).

    Example: the first ``memory`` failure is retried, the second is attributed to the agent.
    """
    kind = failures[-1]
    policy = policy_of(kind)
    if policy.own_doing_after is not None and failures.count(kind) >= policy.own_doing_after:
        return Decision.COUNT
    if len(failures) > retries or failures.count(kind) > policy.retries:
        return Decision.EXCLUDE
    return Decision.RETRY


def kind_of(error: BaseException) -> str:
    """Return the kind under which an exception is counted; a timeout is ``transport``."""
    if isinstance(error, SandboxError):
        return error.kind
    return "transport" if isinstance(error, TimeoutError) else "infrastructure"


def own_doing(kind: str, error: str) -> str:
    """Return the message for a failure that is counted against the agent."""
    policy = policy_of(kind)
    return (
        f"the agent's own doing, {policy.own_doing_after} times in fresh sandboxes: {policy.name} ({error})"
    )


async def retried(attempt: Callable[[], Awaitable[T]], *, retries: int, counted: Callable[[str], T]) -> T:
    """Run work in a sandbox; after failures, retry it in fresh ones.

    Args:
        attempt: opens a sandbox and does the work.
        retries: fresh sandboxes the run allows in all (``sandbox.start_retries``).
        counted: returns the result of a failure that is attributed to the agent, from its description.

    Raises:
        SandboxError: infrastructure failed in every attempt.
    """
    failures: list[str] = []
    while True:
        try:
            return await attempt()
        except SandboxError as error:
            failures.append(error.kind)
            decision = decide(failures, retries=retries)
            if decision is Decision.COUNT:
                return counted(own_doing(error.kind, str(error) or type(error).__name__))
            if decision is Decision.EXCLUDE:
                raise
