"""Preflight of Docker sandboxes: a trial start, and findings about the daemon.

To add a check, append to one of the lists; its message must include the remedy.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

from engine.errors import SandboxError
from engine.sandbox.base import PreflightFinding, SandboxSpec
from engine.sandbox.docker.backend import DockerBackend
from engine.sandbox.local.images import build_image, image_folder

_OLDEST = (1, 40)
_USER_NAMESPACES = ("name=userns", "name=rootless")
_LIMITS = (
    ("MemoryLimit", "memory"),
    ("PidsLimit", "the number of processes"),
    ("CpuCfsQuota", "CPU time"),
)


async def check(backend: DockerBackend) -> list[PreflightFinding]:
    """Start a sandbox and return findings about the daemon; empty when nothing is missing."""
    problem = await _problem(backend)
    if problem is not None:
        return [PreflightFinding.error(problem)]
    return [PreflightFinding.warning(message) for message in _weaker(backend, await backend.facts())]


async def _problem(backend: DockerBackend) -> str | None:
    try:
        facts = await backend.facts()
    except SandboxError as error:
        return f"{error}."
    version = backend.daemon.client.api_version
    if tuple(int(part) for part in version.split(".")) < _OLDEST:
        return f"The Docker daemon speaks API {version}; at least 1.40 (Docker 19.03) is needed: update it."
    if facts.get("OSType") != "linux":
        return f"The Docker daemon runs {facts.get('OSType')} containers; Linux ones are needed."
    if backend.daemon.address.local:
        problem = await _probe(backend)
        if problem is not None:
            return f"A sandbox does not start in Docker: {problem}"
    return None


def _weaker(backend: DockerBackend, facts: dict[str, Any]) -> list[str]:
    messages = [
        f"Docker cannot limit {resource} on this kernel; enable the control group for it."
        for key, resource in _LIMITS
        if not facts.get(key)
    ]
    if backend.daemon.address.local and not backend.quota:
        messages.append(
            f"Docker's storage ({facts.get('Driver')}) cannot limit what a container writes; a file "
            f"is limited in size, and the sum is checked every {backend.config.disk_check_s:g} s. "
            "Put Docker's data folder on XFS mounted with pquota."
        )
    if not any("seccomp" in option for option in facts.get("SecurityOptions") or ()):
        messages.append("the daemon has no seccomp filter; use a kernel and a Docker with seccomp.")
    if not any(name in option for option in facts.get("SecurityOptions") or () for name in _USER_NAMESPACES):
        messages.append(
            "the daemon gives containers no user namespace, so users inside share the host's limits on file "
            "watches and pending signals: set userns-remap in the daemon's configuration, or run it rootless."
        )
    if backend.config.network != "none":
        messages.append(f"sandbox.docker.network is '{backend.config.network}': agents can reach it.")
    return messages


async def _probe(backend: DockerBackend) -> str | None:
    """Run one command in a sandbox of a throw-away image; return the problem, or None."""
    backend.home.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        tree = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trainyard-preflight-")))
        (tree / "file").write_text("content\n")
        name = f"local:preflight-{tree.name.rpartition('-')[2]}"
        stack.callback(shutil.rmtree, image_folder(backend.home, name), ignore_errors=True)
        build_image(backend.home, name, tree)
        try:
            async with backend.open(SandboxSpec(image=name, name="preflight")) as sandbox:
                result = await sandbox.exec("cat file && echo more >> file", timeout_s=20)
                if result.exit_code != 0 or result.stdout != b"content\n":
                    return f"a trivial command printed {(result.stdout + result.stderr)[:500]!r}."
            await backend.images.remove(name)
        except (SandboxError, OSError) as error:
            return f"{error}."
    return None
