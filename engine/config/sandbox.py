"""Settings of sandboxes: which backend, what one may use, how many at once, and each backend's own."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from engine.config.base import Section
from engine.config.kubernetes import KubernetesConfig


class DockerConfig(Section):
    """The Docker backend."""


class SandboxConfig(Section):
    """Where commands run, and what they may use."""

    backend: Literal["local", "docker", "kubernetes"] = "local"
    """Sandbox backend."""
    memory_mb: int = Field(default=512, ge=64)
    """Memory limit of one sandbox, MiB."""
    processes: int = Field(default=64, ge=8)
    """Process limit of one sandbox."""
    disk_mb: int = Field(default=256, ge=16)
    """Limit on what one sandbox may write, MiB."""
    max_live: int = Field(default=64, ge=1)
    """How many sandboxes may exist at once."""
    max_starting: int = Field(default=4, ge=1)
    """How many sandboxes may be starting at once."""
    queue_timeout_s: float = Field(default=3600.0, gt=0)
    """How long a sandbox may wait for a place before that counts as an infrastructure failure, seconds."""
    start_retries: int = Field(default=2, ge=0)
    """Fresh sandboxes tried after an infrastructure failure before a rollout is excluded."""
    docker: DockerConfig = DockerConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()
