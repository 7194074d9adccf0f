"""Disk limits for storage drivers without quotas: containers that wrote too much are killed.

Docker limits a container's layer only on XFS with project quotas and a few other file systems. Elsewhere an
rlimit caps the size of each file, and the total is checked every few seconds. A sandbox above its limit ends
with ``SandboxResourceError``, which saves its neighbours' disk space.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import docker
import structlog

from engine.errors import SandboxError, SandboxResourceError
from engine.sandbox.docker.container_spec import OWNER, SANDBOX_ID, ContainerOwner
from engine.sandbox.docker.daemon import Daemon

_log = structlog.get_logger(__name__)


class Watched(Protocol):
    """A sandbox whose disk use is watched."""

    disk_bytes: int

    def fail(self, error: SandboxError) -> None:
        """End the sandbox with ``error``."""


async def watch(daemon: Daemon, live: Callable[[], Mapping[str, Watched]], pause_s: float) -> None:
    """Check the disk use of all sandboxes of this process until none is left."""
    label = f"{OWNER}={ContainerOwner.this().label()}"

    def sizes(client: docker.APIClient) -> dict[str, int]:
        rows = client.containers(filters={"label": [label]}, size=True)
        return {row["Labels"].get(SANDBOX_ID, ""): row.get("SizeRw", 0) for row in rows}

    while live():
        await asyncio.sleep(pause_s)
        try:
            written = await daemon.call(sizes)
        except SandboxError as error:
            _log.warning("cannot read the disk use of containers", error=str(error))
            continue
        for sandbox, container in list(live().items()):
            if written.get(sandbox, 0) > container.disk_bytes:
                text = f"the sandbox wrote more than its {container.disk_bytes >> 20} MiB"
                container.fail(SandboxResourceError(text))
