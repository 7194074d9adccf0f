"""Removal of containers without a living owner.

When an owner dies its connections end, and with them its agents, within moments; what is left are stopped
containers. They, and everything past its deadline, are found by label. Whether an owner lives can be told
only on its own machine; a stranger's container is an orphan when it has stopped or its time is over.
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
    """Return whether a row of the daemon's list may be removed.

    Args:
        container: its ``Labels`` and ``State``.
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
    """Remove all orphans, or one run's; return the number of sandboxes. Safe beside other reapers."""
    wanted = [ROLE] if run_id is None else [f"{RUN_ID}={run_id}"]
    containers = client.containers(all=True, filters={"label": wanted})
    # A container started ahead of demand got its deadline later, in the ledger.
    late = {entry.id for entry in ledger.entries() if time.monotonic() > entry.deadline + _GRACE_S}
    orphans = [
        container
        for container in containers
        if orphaned(container, time.time()) or container["Labels"].get(SANDBOX_ID) in late
    ]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        gone = list(threads.map(lambda container: remove(client, container["Id"]), orphans))
    removed = {
        container["Labels"].get(SANDBOX_ID, container["Id"])
        for container, success in zip(orphans, gone, strict=True)
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
        return bool(error.status_code == 409)  # somebody else is removing it
    return True
