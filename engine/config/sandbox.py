"""Settings of sandboxes: backend, limits, concurrency, and the options of each backend."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from engine.config.access.places import ANY, Bounded, Granted, ImageRegistries, Text
from engine.config.base import Section
from engine.config.kubernetes import KubernetesConfig


class LocalConfig(Section):
    """Settings of the local backend."""

    warm_per_image: int = Field(default=8, ge=0)
    """Maximum number of sandboxes per image started ahead of demand, within ``max_live``; 0 starts none."""
    warm_idle_s: float = Field(default=600.0, gt=0)
    """Time after which an unused warm sandbox is removed, seconds."""


class DockerConfig(Section):
    """Settings of the Docker backend."""

    host: Annotated[str, Granted()] = ""
    """Address of the daemon, ``unix:///…`` or ``tcp://…``; empty uses DOCKER_HOST, else the daemon below
    the data folder, else the system's daemon."""
    network: Annotated[str, Granted()] = "none"
    """Network of sandboxes; any value but ``none`` gives agents network access."""
    runtime: Annotated[str, Granted()] = ""
    """Container runtime, e.g. ``runsc`` for a separate kernel; empty uses the daemon's default."""
    user: Text = ""
    """User that runs commands in pulled images; empty uses the image's user, usually root without
    capabilities."""
    max_creating: int = Field(default=0, ge=0)
    """Maximum number of containers created at once; 0 uses twice the daemon's processors."""
    start_timeout_s: float = Field(default=120.0, gt=0)
    """Maximum time from a container's start to the greeting of its agent, seconds."""
    warm_per_image: int = Field(default=8, ge=0)
    """Maximum number of sandboxes per image started ahead of demand, within ``max_live``; 0 starts none."""
    warm_idle_s: float = Field(default=600.0, gt=0)
    """Time after which an unused warm sandbox is removed, seconds."""
    daemon_timeout_s: float = Field(default=120.0, gt=0)
    """Timeout of one request to the daemon, seconds."""
    disk_check_s: float = Field(default=5.0, gt=0)
    """Interval between disk usage checks of containers where the storage driver enforces no limit,
    seconds."""
    pull_retries: int = Field(default=6, ge=0)
    """Number of retries of an image pull when the registry is busy or the connection breaks."""
    pull_backoff_s: float = Field(default=5.0, gt=0)
    """Initial pause between pull attempts, seconds; doubled each time up to two minutes, with jitter."""
    max_pulling: int = Field(default=3, ge=1)
    """Maximum number of concurrent image pulls."""
    max_pull_gb: Annotated[float, Bounded(50)] = Field(default=50.0, gt=0)
    """Maximum compressed size of a pulled image, GB."""
    registry_config: Annotated[str, Granted()] = ""
    """Docker ``config.json`` with registry credentials; empty uses that of the user."""
    build_network: Annotated[str, Granted()] = ""
    """Network of image builds from a dataset's Dockerfiles: ``none``, or a network of the daemon; empty
    refuses to build."""
    build_timeout_s: float = Field(default=600.0, gt=0)
    """Maximum time of a build, and of any of its steps without output, seconds."""
    build_memory_mb: Annotated[int, Bounded(65_536)] = Field(default=4096, ge=64)
    """Memory limit of a build's steps, MiB."""
    build_disk_mb: Annotated[int, Bounded(131_072)] = Field(default=10_240, ge=16)
    """Maximum size of a built image, MiB; a larger one is removed."""
    image_budget_gb: float = Field(default=0.0, ge=0)
    """Disk budget of pulled images, GB; beyond it the least recently used are removed; 0 sets no limit."""


class SandboxConfig(Section):
    """Backend and limits of sandboxes."""

    backend: Literal["local", "docker", "kubernetes"] = "local"
    """Sandbox backend."""
    memory_mb: Annotated[int, Bounded(65_536)] = Field(default=512, ge=64)
    """Memory limit of a sandbox, MiB."""
    processes: Annotated[int, Bounded(4_096)] = Field(default=64, ge=8)
    """Process limit of a sandbox."""
    disk_mb: Annotated[int, Bounded(65_536)] = Field(default=256, ge=16)
    """Disk write limit of a sandbox, MiB."""
    max_live: Annotated[int, Bounded(2_048)] = Field(default=64, ge=1, lt=2**31)
    """Maximum number of sandboxes at once."""
    max_starting: Annotated[int, Bounded(512)] = Field(default=4, ge=1, lt=2**31)
    """Maximum number of sandboxes starting at once."""
    queue_timeout_s: float = Field(default=3600.0, gt=0)
    """Maximum time a sandbox request waits in the queue, seconds; longer counts as an infrastructure
    failure."""
    registries: Annotated[tuple[str, ...], ImageRegistries()] = (ANY,)
    """Hosts from which images of tasks may come, with the port where they have one, e.g. ``docker.io``; ``*``
    means all that the administrator allows."""
    start_retries: int = Field(default=2, ge=0)
    """Number of fresh sandboxes tried after an infrastructure failure before the rollout is excluded."""
    local: LocalConfig = LocalConfig()
    docker: DockerConfig = DockerConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()

    def limits(self) -> dict[str, str | int]:
        """Return the backend and the limits that affect the results of commands, by setting."""
        return self.model_dump(include={"backend", "memory_mb", "processes", "disk_mb"})
