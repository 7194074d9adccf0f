"""Preflight of the configured backend: checks, before a run, that sandboxes can start.

Each backend has its own ``preflight`` module. For another backend, add a case in ``_check``.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from engine.errors import PreflightError
from engine.sandbox.base import PreflightFinding, SandboxBackend
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.local.preflight import check as check_local
from engine.sandbox.local.preflight import not_installed

_PATCH_PROGRAMS = ("git", "patch")
"""Programs that apply patches to copies of a sandbox's files, on this machine with any backend."""


async def preflight(backend: SandboxBackend) -> list[PreflightFinding]:
    """Return the shortcomings of this machine, daemon or cluster for a backend's sandboxes."""
    missing = [
        PreflightFinding.error(not_installed(program, program))
        for program in _PATCH_PROGRAMS
        if shutil.which(program) is None
    ]
    return [*missing, *await _check(backend)]


async def _check(backend: SandboxBackend) -> list[PreflightFinding]:
    if isinstance(backend, LocalBackend):
        return await check_local(backend)
    match backend.name:
        case "docker":
            from engine.sandbox.docker.backend import DockerBackend  # the SDK is slow to import
            from engine.sandbox.docker.preflight import check as check_docker

            assert isinstance(backend, DockerBackend)
            return await check_docker(backend)
        case "kubernetes":
            from engine.sandbox.kubernetes.backend import KubernetesBackend  # so is the client
            from engine.sandbox.kubernetes.preflight.checks import check as check_kubernetes

            assert isinstance(backend, KubernetesBackend)
            return await check_kubernetes(backend)
    return []


async def require(backend: SandboxBackend) -> Sequence[PreflightFinding]:
    """Return a backend's preflight warnings.

    Raises:
        PreflightError: sandboxes cannot run; the message names everything that is missing.
    """
    findings = await preflight(backend)
    errors = [finding.message for finding in findings if finding.severity == "error"]
    if errors:
        raise PreflightError(" ".join(errors))
    return findings
