"""Kinds of sandbox failure: display names, remedies and retry policies.

One table for the engine (used by ``engine.sandbox.failures``) and for pages. To add a kind: a subclass
of ``SandboxError`` with its ``kind`` in ``engine.errors``, an entry in ``POLICIES``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """Treatment and description of one kind of failure."""

    name: str
    """Display name, in a few words."""
    remedy: str
    """Recommended action, one sentence."""
    retries: int
    """Maximum number of fresh sandboxes tried; further limited by the run's ``sandbox.start_retries``."""
    own_doing_after: int | None = None
    """Number of failures in one rollout after which they are attributed to the agent; None: never."""


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
        remedy="check its node, and whether other sandboxes ended there at that time",
        retries=3,
    ),
    "memory": FailurePolicy(
        name="out of memory",
        remedy="raise sandbox.memory_mb if the task's own tests need more",
        retries=1,
        own_doing_after=2,
    ),
    "evicted": FailurePolicy(
        name="removed by the cluster",
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
    """Return the policy of a kind of failure; kinds without an entry are treated as ``infrastructure``."""
    return POLICIES.get(kind, POLICIES["infrastructure"])
