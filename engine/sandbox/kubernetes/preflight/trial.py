"""Trial start of a sandbox, or at least of a pod, to test scheduler, nodes and runtime."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from typing import Any

from engine.config.kubernetes import KubernetesConfig
from engine.config.sandbox import SandboxConfig
from engine.errors import PreflightError, SandboxError
from engine.sandbox.base import PreflightFinding, Sandbox, SandboxLimits, SandboxSpec
from engine.sandbox.kubernetes import diagnosis
from engine.sandbox.kubernetes.api.client import KubeApi
from engine.sandbox.kubernetes.api.errors import ApiError
from engine.sandbox.kubernetes.backend import KubernetesBackend
from engine.sandbox.kubernetes.manifests import labels, spec
from engine.sandbox.kubernetes.manifests.preload import NAME as PRELOAD
from engine.sandbox.kubernetes.manifests.preload import PAUSE
from engine.sandbox.kubernetes.owner import OwnerLease

Json = dict[str, Any]
_POLL_S = 0.25
_NEEDLESS = (
    "import ctypes, errno; libc = ctypes.CDLL(None, use_errno=True); "
    "known = (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT); "
    "tried = {'io_uring': lambda: libc.syscall(425, 1, 0), 'AF_VSOCK': lambda: libc.socket(40, 1, 0), "
    "'AF_ALG': lambda: libc.socket(38, 5, 0)}; "
    "print(', '.join(name for name, call in tried.items() if call() >= 0 or ctypes.get_errno() not in known))"
)
"""Prints which of the calls allowed by some runtimes' default profiles reach the kernel."""


async def try_out(backend: KubernetesBackend, api: KubeApi) -> list[PreflightFinding]:
    """Start a pod with the sandboxes' specification and, if an image is known, a whole sandbox.

    Raises:
        ApiError: the cluster does not answer.
    """
    problems = await _try_a_pod(backend.config, api)
    if problems:
        return problems
    config = backend.config.kubernetes
    image = config.preflight_image or next(_known_images(await api.list(_pods(backend.config))), "")
    if image:
        return await _try_a_sandbox(backend, image)
    return [
        PreflightFinding.warning(
            f"A pod was started in namespace {config.namespace}, but no sandbox: no image is known that the "
            "cluster has. Name one with a Python in sandbox.kubernetes.preflight_image."
        )
    ]


def _pods(config: SandboxConfig) -> str:
    return f"/api/v1/namespaces/{config.kubernetes.namespace}/pods"


def _known_images(pods: Json) -> Iterator[str]:
    """Return the images of the namespace's sandboxes, then those pulled by ``preload``."""
    for pod in pods["items"]:
        meta = pod["metadata"]
        image = (meta.get("annotations") or {}).get(labels.IMAGE)
        if image and image != PAUSE and diagnosis.running(pod):
            yield image
    for pod in pods["items"]:
        if (pod["metadata"].get("labels") or {}).get("app.kubernetes.io/name") == PRELOAD:
            for status in pod.get("status", {}).get("initContainerStatuses") or []:
                if (status.get("state") or {}).get("terminated"):
                    yield status["image"]


async def _try_a_sandbox(backend: KubernetesBackend, image: str) -> list[PreflightFinding]:
    """Start a sandbox, run a command, and probe its network access."""
    try:
        wanted = SandboxSpec(image=image, workdir="/tmp", name="preflight")
        # The second sandbox probes whether it can connect to the first.
        async with backend.open(wanted) as sandbox, backend.open(wanted):
            result = await sandbox.exec("echo works", timeout_s=30)
            if result.stdout != b"works\n":
                printed = result.stdout + result.stderr
                return [PreflightFinding.error(f"A trivial command printed {printed[:500]!r}.")]
            return await needless_calls(sandbox, backend.config.kubernetes)
    except (SandboxError, PreflightError) as error:
        return [PreflightFinding.error(f"A sandbox of {image} does not start: {error}.")]


async def needless_calls(sandbox: Sandbox, config: KubernetesConfig) -> list[PreflightFinding]:
    """Return a warning that names the system calls which the pod's seccomp profile should refuse."""
    result = await sandbox.exec(spec.python_command(config, _NEEDLESS), timeout_s=30)
    reached = result.stdout.decode(errors="replace").strip()
    if not reached:
        return []
    return [
        PreflightFinding.warning(
            f"sandbox.kubernetes.seccomp={config.seccomp} lets {reached} reach the nodes' kernel: put the "
            "output of `python -m engine.sandbox.kubernetes seccomp` into the kubelets' seccomp folder and "
            "set Localhost/PATH."
        )
    ]


async def _try_a_pod(config: SandboxConfig, api: KubeApi) -> list[PreflightFinding]:
    """Create a pod and wait until a node accepts it; its image does not matter."""
    lease = OwnerLease(config.kubernetes)
    name = f"sb-{secrets.token_hex(6)}"
    path = f"{_pods(config)}/{name}"
    limits = SandboxLimits(memory_mb=config.memory_mb, processes=config.processes, disk_mb=config.disk_mb)
    await lease.hold(api)
    try:
        pod = spec.pod(
            config.kubernetes.model_copy(update={"require_digest": False}),
            SandboxSpec(image=PAUSE, run_id="preflight", name="preflight", limits=limits),
            sandbox_id=name,
            owner=lease.owner,
            token=secrets.token_bytes(32),
            deadline=api.now() + config.kubernetes.preflight_timeout_s + spec.SLACK_S,
        )
        await _create(api, _pods(config), pod)
        problem = await _taken(api, path, config.kubernetes.preflight_timeout_s)
    except ApiError as error:
        if error.status not in (403, 422):
            raise
        return [PreflightFinding.error(f"The cluster refuses a sandbox's pod: {error}.")]
    finally:
        try:
            await api.delete(path, grace_s=0)
        finally:
            await lease.release(api)
    return [PreflightFinding.error(problem)] if problem else []


async def _create(api: KubeApi, path: str, pod: Json) -> None:
    try:
        await api.create(path, pod)
    except ApiError as error:
        if error.status != 409:  # created by an earlier attempt, response lost
            raise


async def _taken(api: KubeApi, path: str, timeout_s: float) -> str:
    """Wait until a kubelet accepts the pod; return the reason if none does, otherwise ''."""
    give_up = time.monotonic() + timeout_s
    while True:
        pod = await api.get(path)
        if pod.get("status", {}).get("startTime"):
            return ""
        if time.monotonic() > give_up:
            break
        await asyncio.sleep(_POLL_S)
    if node := diagnosis.node(pod):
        return f"Node {node} did not start a pod within {timeout_s:g} s: is its kubelet alive?"
    reason = diagnosis.waiting(pod).reason or "no scheduler has processed it"
    return (
        f"No node accepted a pod within {timeout_s:g} s ({reason}): add or uncordon nodes, check "
        "node_selector and tolerations, or raise sandbox.kubernetes.preflight_timeout_s where an autoscaler "
        "adds nodes."
    )
