"""Settings of launchers: where the process of a run starts, and the cluster resources it reserves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from engine.config.access.places import Granted, Harmless
from engine.config.base import Section


class RayConfig(Section):
    """Settings of the Ray launcher."""

    address: Annotated[str, Granted()] = Field(default="", pattern=r"^(https?://[^\s/@]+)?$")
    """Address of the cluster's dashboard, ``http://HOST:8265``; empty uses RAY_API_SERVER_ADDRESS of the
    workers."""
    cpus: float = Field(default=1.0, ge=0)
    """Number of CPUs reserved for the run on one node of the cluster."""
    gpus: float = Field(default=0.0, ge=0)
    """Number of GPUs reserved for the run on one node; it sees no others."""
    memory_gb: float = Field(default=0.0, ge=0)
    """Memory reserved for the run on one node, GB; 0 reserves none."""
    resources: Annotated[Mapping[str, Annotated[float, Field(gt=0)]], Harmless()] = {}
    """Custom resources reserved for the run on one node, by name, e.g. ``accelerator_type:H100``."""
    python: Annotated[str, Granted()] = ""
    """Python interpreter of the run on the nodes; empty uses the path of the workers' own."""
    project: Annotated[str, Granted()] = ""
    """Folder of Trainyard's code on the nodes; empty uses the path of the workers' own."""
    runtime_env: Annotated[Mapping[str, Any], Granted()] = {}
    """Ray runtime environment of the run, e.g. ``{"env_vars": {"NCCL_DEBUG": "INFO"}}``."""


class StorageConfig(Section):
    """Place of a copy of the run folder that outlives the run's node."""

    url: Annotated[str, Granted()] = Field(default="", pattern=r"^([a-z0-9]+://[^\s@]+)?$")
    """Address of the object store, e.g. ``s3://BUCKET/PREFIX`` (fsspec); empty keeps no copy. Credentials
    come from the environment of the run, e.g. ``AWS_ACCESS_KEY_ID`` and ``AWS_ENDPOINT_URL``."""
    interval_s: float = Field(default=2.0, gt=0, le=60)
    """Time between two copies of the events, seconds: events wait that long until pages show them."""


class LauncherConfig(Section):
    """Place where the run's process starts."""

    backend: Literal["local", "ray", "external"] = "local"
    """Launcher: a process on the workers' machine, a job of a Ray cluster, or none: another program runs it
    and posts its events."""
    ray: RayConfig = RayConfig()
