"""An image of a Docker daemon with the settings of its sandboxes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerImage:
    """An image present at the daemon."""

    id: str
    name: str
    """Name of the image in the task."""
    user: str | None = None
    """User that runs commands; None for the configured user or the image's own."""
    python: str = ""
    """Interpreter of the agent; empty to search for one."""
    binds: tuple[tuple[str, str], ...] = ()
    """Read-only mounts: path on this machine, path in the sandbox."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables beyond those of the image."""
