"""Removal of containers without a living owner.

When an owner dies, its connections end and its agents exit within moments, which leaves stopped containers.
These, and containers past their deadline, are found by label. Only the owner's own machine can check whether
it is alive; elsewhere a container is an orphan once it has stopped or its deadline is over.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import docker
import docker.errors

from engine.sandbox.docker.container_spec import (
    DEADLINE,
    OWNER,
    ROLE,
    RUN_ID,
    SANDBOX,
    SANDBOX_ID,
    ContainerOwner,
)
from engine.sandbox.ledger import Ledger

_STOPPED = ("exited", "dead")
_AT_ONCE = 4
_GRACE_S = 30.0
"""Seconds after a deadline within which an owner may still report the end of its sandbox."""


def orphaned(container: dict[str, Any], now: float) -> bool:
    """Return whether a container may be removed.

    Args:
        container: row of the daemon's list, with ``Labels`` and ``State``.
        now: seconds since the epoch.
    """
    labels = container["Labels"]
    try:
        if now > float(labels.get(DEADLINE, "inf")) + _GRACE_S:
            return True
    except ValueError:
        return True
    owner = ContainerOwner.parse(labels.get(OWNER, ""))
    alive = owner.alive() if owner is not None else None
    if alive is None:
        return container["State"] in _STOPPED
    return not alive


def reap(client: docker.APIClient, ledger: Ledger, run_id: str | None = None) -> int:
    """Remove all orphans, or one run's; return the number of sandboxes. Safe to run concurrently."""
    wanted = [ROLE] if run_id is None else [f"{RUN_ID}={run_id}"]
    containers = client.containers(all=True, filters={"label": wanted})
    # The real deadline of a container started ahead of demand is in the ledger.
    late = {entry.id for entry in ledger.entries() if time.monotonic() > entry.deadline + _GRACE_S}
    orphans = [
        container
        for container in containers
        if orphaned(container, time.time()) or container["Labels"].get(SANDBOX_ID) in late
    ]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        successes = list(threads.map(lambda container: remove(client, container["Id"]), orphans))
    removed = {
        container["Labels"].get(SANDBOX_ID, container["Id"])
        for container, success in zip(orphans, successes, strict=True)
        if success and container["Labels"].get(ROLE) == SANDBOX
    }
    present = {container["Labels"].get(SANDBOX_ID) for container in containers} - removed
    for entry in ledger.entries():
        if (run_id is None or entry.run_id == run_id) and entry.orphaned() and entry.id not in present:
            ledger.remove(entry)
            removed.add(entry.id)
    return len(removed)


def remove(client: docker.APIClient, container: str) -> bool:
    """Kill and remove a container with its volumes; return False when the daemon could not."""
    try:
        client.remove_container(container, v=True, force=True)
    except docker.errors.NotFound:
        return True
    except docker.errors.APIError as error:
        return bool(error.status_code == 409)  # another process is removing it
    return True
