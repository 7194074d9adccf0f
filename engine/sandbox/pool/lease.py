"""The record of one sandbox of the pool, from the request to its end."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field

from engine.errors import SandboxError
from engine.sandbox.base import SandboxSpec, Startup
from engine.sandbox.pool.report import Record


@dataclass(slots=True, eq=False)
class Lease:
    """State of one sandbox request; the pool is the only writer."""

    spec: SandboxSpec
    backend: str
    """Name of the backend that starts the sandbox."""
    id: str = field(default_factory=lambda: f"ls-{secrets.token_hex(8)}")
    queue_seconds: float = 0.0
    """Seconds between the request and its admission."""
    startup: Startup | None = None
    """Node and duration of the start; None before the sandbox has started."""
    sandbox_id: str = ""
    leased_at: float | None = None
    """Unix time of the admission."""
    started_at: float | None = None
    """Unix time at which the sandbox was ready."""

    def record(self, state: str, *, error: BaseException | None = None) -> Record:
        """Return the fields of ``SandboxRecord`` for a state."""
        startup = self.startup
        return {
            "lease": self.id,
            "state": state,
            "name": self.spec.name[:200],
            "lane": self.spec.lane[:64],
            "image": self.spec.image[:300],
            "backend": self.backend,
            "sandbox_id": self.sandbox_id,
            "node": startup.node if startup else "",
            "warm": startup.warm if startup else False,
            "queue_seconds": self.queue_seconds,
            "pull_seconds": startup.pull if startup else 0.0,
            "start_seconds": startup.start if startup else 0.0,
            "leased_at": self.leased_at or time.time(),
            "started_at": self.started_at,
            "ended_at": time.time() if state in ("closed", "failed") else None,
            "failure": error.kind if isinstance(error, SandboxError) else "",
            "reason": one_line(error) if isinstance(error, SandboxError) else "",
        }


def one_line(error: BaseException) -> str:
    """Return an error's text as one line of valid Unicode, at most 1,000 characters."""
    text = str(error) or type(error).__name__
    return " ".join(text.split()).encode("utf-8", "replace").decode()[:1000]
