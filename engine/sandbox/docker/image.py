"""An image that a Docker daemon holds, with what its sandboxes need besides it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerImage:
    """An image that the daemon has."""

    id: str
    name: str
    """As the task names it."""
    user: str | None = None
    """Whom commands run as; None: as the settings or the image say."""
    python: str = ""
    """Runs the agent; empty: it is looked for."""
    binds: tuple[tuple[str, str], ...] = ()
    """Read-only mounts: path on this machine, path inside."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment beyond what the image itself sets."""
