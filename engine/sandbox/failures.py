"""What to do about each kind of sandbox failure: how often to try again, the reward, the remedy.

    failures of one rollout or grading so far ─▶ decide ─▶ retry    in a fresh sandbox
                                                         exclude  infrastructure: no reward, out of its group
                                                         count    the agent's own doing: reward 0

Rollouts and grading share this table. To add a kind: a subclass of ``SandboxError`` with its ``kind`` in
``engine.errors``, an entry in ``POLICIES``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from engine.errors import SandboxError


class Decision(StrEnum):
    """What follows from a failure."""

    RETRY = "retry"
    EXCLUDE = "exclude"
    COUNT = "count"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """How one kind of failure is treated and told."""

    name: str
    """For people, in a few words."""
    remedy: str
    """What a person can do, one sentence."""
    retries: int
    """Fresh sandboxes tried at most; the run's ``sandbox.start_retries`` limits it further."""
    own_doing_after: int | None = None
    """So many of them in one rollout are the agent's own doing; None: it is never to blame."""


POLICIES: dict[str, FailurePolicy] = {
    "queue_timeout": FailurePolicy(
        name="no place in the pool",
        remedy="raise sandbox.max_live or sandbox.queue_timeout_s, or lower rollout.max_concurrent",
        retries=0,
    ),
    "image": FailurePolicy(
        name="image not available",
        remedy="check the image's name and the registry's credentials, or preload the image",
        retries=1,
    ),
    "start": FailurePolicy(
        name="did not start",
        remedy="run `python -m engine.sandbox preflight`; the reason names what was missing",
        retries=3,
    ),
    "start_timeout": FailurePolicy(
        name="not ready in time",
        remedy="the machine or cluster is overloaded: lower sandbox.max_starting or add nodes",
        retries=2,
    ),
    "died": FailurePolicy(
        name="ended while in use",
        remedy="look at the node it ran on and at what else ended there at that time",
        retries=3,
    ),
    "memory": FailurePolicy(
        name="out of memory",
        remedy="raise sandbox.memory_mb if the task's own tests need more",
        retries=1,
        own_doing_after=2,
    ),
    "evicted": FailurePolicy(
        name="taken away by the cluster",
        remedy="protect sandboxes from scale-down and preemption, and give nodes enough ephemeral storage",
        retries=3,
    ),
    "transport": FailurePolicy(
        name="connection lost",
        remedy="check the network between the engine and the sandboxes' nodes",
        retries=2,
    ),
    "resource": FailurePolicy(
        name="out of processes or disk",
        remedy="raise sandbox.processes or sandbox.disk_mb if the task's own tests need more",
        retries=1,
        own_doing_after=2,
    ),
    "infrastructure": FailurePolicy(
        name="infrastructure failed",
        remedy="the engine's log has the details",
        retries=2,
    ),
}


def policy_of(kind: str) -> FailurePolicy:
    """The treatment of a kind; a kind without an entry is treated as ``infrastructure``."""
    return POLICIES.get(kind, POLICIES["infrastructure"])


def decide(failures: Sequence[str], *, retries: int) -> Decision:
    """What to do now.

    Args:
        failures: kinds of failure of this rollout or grading, in order; the last one just happened.
        retries: fresh sandboxes the run allows in all (``sandbox.start_retries``).

    Example: one ``memory`` is tried again, the second is the agent's own doing.
    """
    kind = failures[-1]
    policy = policy_of(kind)
    if policy.own_doing_after is not None and failures.count(kind) >= policy.own_doing_after:
        return Decision.COUNT
    if len(failures) > retries or failures.count(kind) > policy.retries:
        return Decision.EXCLUDE
    return Decision.RETRY


def kind_of(error: BaseException) -> str:
    """The kind under which an exception is counted; an answer that did not come in time is ``transport``."""
    if isinstance(error, SandboxError):
        return error.kind
    return "transport" if isinstance(error, TimeoutError) else "infrastructure"


def own_doing(kind: str, error: str) -> str:
    """The sentence about a failure that is counted against the agent."""
    policy = policy_of(kind)
    return (
        f"the agent's own doing, {policy.own_doing_after} times in fresh sandboxes: {policy.name} ({error})"
    )
