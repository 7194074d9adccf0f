"""Preflight of the configured backend: finds out, before a run, what sandboxes lack on this machine.

Each backend has its own ``preflight`` module. For another backend, add a case in ``preflight``.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import PreflightError
from engine.sandbox.base import PreflightFinding, SandboxBackend
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.local.preflight import check as check_local


async def preflight(backend: SandboxBackend) -> list[PreflightFinding]:
    """Return what the machine or the cluster lacks for a backend's sandboxes."""
    if isinstance(backend, LocalBackend):
        return await check_local(backend)
    match backend.name:
        case "docker":
            from engine.sandbox.docker.backend import DockerBackend  # the SDK costs start-up time
            from engine.sandbox.docker.preflight import check as check_docker

            assert isinstance(backend, DockerBackend)
            return await check_docker(backend)
        case "kubernetes":
            from engine.sandbox.kubernetes.backend import KubernetesBackend  # so does the client's
            from engine.sandbox.kubernetes.preflight.checks import check as check_kubernetes

            assert isinstance(backend, KubernetesBackend)
            return await check_kubernetes(backend)
    return []


async def require(backend: SandboxBackend) -> Sequence[PreflightFinding]:
    """Return a backend's preflight warnings.

    Raises:
        PreflightError: sandboxes cannot run; names everything that is missing.
    """
    findings = await preflight(backend)
    errors = [finding.message for finding in findings if finding.severity == "error"]
    if errors:
        raise PreflightError(" ".join(errors))
    return findings
