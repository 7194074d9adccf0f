"""Factory of sandbox backends. For another backend, add a case."""

from __future__ import annotations

from pathlib import Path

from engine.config.sandbox import SandboxConfig
from engine.errors import PreflightError
from engine.sandbox.base import SandboxBackend
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.warm import WarmSettings


def make_backend(config: SandboxConfig, home: Path, *, run_id: str = "adhoc") -> SandboxBackend:
    """Create the configured backend without starting anything.

    Args:
        config: name and settings of the backend.
        home: the data folder.
        run_id: run of the sandboxes that are started ahead of demand.

    Raises:
        PreflightError: this version does not have the backend.
    """
    match config.backend:
        case "local":
            return LocalBackend(home, warm=WarmSettings.of(config, config.local, run_id))
        case "docker":
            from engine.sandbox.docker.backend import DockerBackend  # the SDK is slow to import

            warm = WarmSettings.of(config, config.docker, run_id)
            return DockerBackend(config.docker, home, warm=warm, registries=config.registries)
        case "kubernetes":
            from engine.sandbox.kubernetes.backend import KubernetesBackend  # so is the client

            return KubernetesBackend(config, run_id=run_id)
        case _:
            raise PreflightError(f"there is no sandbox backend '{config.backend}' yet; use 'local'")
