"""Settings of sandboxes: which backend, what one may use, how many at once, and each backend's own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from engine.config.base import Section
from engine.config.kubernetes import KubernetesConfig
from engine.config.places import Granted, Text


class DockerConfig(Section):
    """The Docker backend."""

    host: Annotated[str, Granted()] = ""
    """Address of the daemon, ``unix:///…`` or ``tcp://…``; empty: DOCKER_HOST, else the one below the data
    folder, else the system's."""
    network: Annotated[str, Granted()] = "none"
    """Network of sandboxes; anything but ``none`` lets agents out."""
    runtime: Annotated[str, Granted()] = ""
    """Container runtime, e.g. ``runsc`` for a kernel of its own; empty: the daemon's default."""
    user: Text = ""
    """Whom commands in pulled images run as; empty: as the image says, mostly root without any capability."""
    max_creating: int = Field(default=0, ge=0)
    """How many containers may be created at once; 0: twice the daemon's processors."""
    start_timeout_s: float = Field(default=120.0, gt=0)
    """Time from the start of a container to its agent's greeting, seconds."""
    daemon_timeout_s: float = Field(default=120.0, gt=0)
    """Time for one answer of the daemon, seconds."""
    disk_check_s: float = Field(default=5.0, gt=0)
    """Seconds between looks at what containers have written, where the storage driver cannot limit it."""
    pull_retries: int = Field(default=6, ge=0)
    """How often a pull is tried again when the registry is busy or the connection breaks."""
    pull_backoff_s: float = Field(default=5.0, gt=0)
    """First pause between pulls of an image, doubled each time up to two minutes, with jitter."""
    max_pulling: int = Field(default=3, ge=1)
    """How many images may be pulled at once."""
    registry_config: Annotated[str, Granted()] = ""
    """A Docker ``config.json`` with credentials for registries; empty: the user's own."""
    image_budget_gb: float = Field(default=0.0, ge=0)
    """Disk space for pulled images, GB: the longest unused are removed beyond it; 0: no limit."""


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
