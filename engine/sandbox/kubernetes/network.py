"""Verification that the cluster enforces network isolation, as an unenforced policy looks like any other.

The first sandbox of a process tries to connect to the outside before it is used. It first tries the cluster's
API, which every pod reaches if no policy is enforced. The next sandbox that runs beside another one tries to
connect to a listener in the ``pristine`` container of that one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence

import structlog

from engine.config.kubernetes import KubernetesConfig
from engine.errors import PreflightError, SandboxError, SandboxStartError
from engine.sandbox import responses
from engine.sandbox.base import ExecResult
from engine.sandbox.client import AgentClient
from engine.sandbox.kubernetes.manifests.spec import python_command
from engine.sandbox.kubernetes.pod import Pod

Target = tuple[str, int]
_OUTSIDE: tuple[Target, ...] = (("169.254.169.254", 80), ("1.1.1.1", 443), ("8.8.8.8", 53))
_TRIES = 3
_SETTLE_S = 3.0
_OUTPUT_CAP = 10_000
_PROBE = """
import errno, select, socket, time
tried = {}
for host, port in TARGETS:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setblocking(False)
    if sock.connect_ex((host, port)) in (0, errno.EINPROGRESS):
        tried[sock] = "%s:%d" % (host, port)
end = time.monotonic() + 2
while tried and time.monotonic() < end:
    for sock in select.select([], list(tried), [], max(0, end - time.monotonic()))[1]:
        where = tried.pop(sock)
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
            print(where)
"""
_WINDOW_S = 1.0
"""Time for which one pod tries to reach another, seconds."""
_REACH = """
import socket, time
end = time.monotonic() + WINDOW_S
while time.monotonic() < end:
    try:
        socket.create_connection((HOST, PORT), max(0.05, end - time.monotonic())).close()
        print("%s:%d" % (HOST, PORT))
        break
    except OSError:
        time.sleep(0.05)
"""
_LISTEN = """
import socket
sock = socket.socket(socket.AF_INET6 if ":" in HOST else socket.AF_INET)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
sock.bind(("", PORT))
sock.listen(1)
sock.settimeout(2 * WINDOW_S)
try:
    sock.accept()
except socket.timeout:
    pass
"""
_PORTS = 20_000, 60_000
_log = structlog.get_logger(__name__)


class NetworkProbe:
    """One-time probe that sandboxes reach neither the outside nor each other.

    With ``require_network_policy`` a sandbox with network access is rejected; else a warning is logged.
    """

    def __init__(self, config: KubernetesConfig) -> None:
        self._config = config
        self._outside_done = False
        self._pods_done = False
        self._lock = asyncio.Lock()

    async def check(self, pod: Pod, other: Callable[[], Pod | None]) -> None:
        """Run the probes that have not finished yet, from ``pod``.

        Args:
            other: returns another pod as a target.

        Raises:
            PreflightError: sandboxes can open connections.
            SandboxError: the probe could not run in this pod; the next one is probed.
        """
        async with self._lock:
            assert pod.agent is not None
            if not self._outside_done:
                self._judge(await reachable(self._config, pod.agent, [pod.api] if pod.api else []))
                self._outside_done = True
            if not self._pods_done and (neighbour := other()) is not None:
                endpoints = await reachable_pod(self._config, pod, neighbour)
                if endpoints is not None:
                    self._judge(endpoints)
                    self._pods_done = True

    def _judge(self, found: Sequence[str]) -> None:
        if found and self._config.require_network_policy:
            raise PreflightError(unenforced(found))
        if found:
            _log.warning("sandboxes are not cut off from the network", reachable=found)


async def reachable(config: KubernetesConfig, agent: AgentClient, also: Sequence[Target]) -> list[str]:
    """Return the endpoints, of ``also`` and of a fixed list outside, to which a command can connect.

    A policy may take some seconds to reach a new pod's node, so reachable endpoints are tried again.

    Raises:
        SandboxError: the probe could not run.
    """
    endpoints: list[str] = []
    for attempt in range(_TRIES):
        if attempt:
            await asyncio.sleep(_SETTLE_S)
        targets = [*also, *_OUTSIDE]
        endpoints = _found(await _run(config, agent, f"TARGETS = {targets!r}\n{_PROBE}"))
        if not endpoints:
            break
    return endpoints


async def reachable_pod(config: KubernetesConfig, pod: Pod, other: Pod) -> list[str] | None:
    """Return the endpoints of another pod that a pod can reach; None where that is unknown.

    Raises:
        SandboxError: the probe could not run in ``pod``.
    """
    endpoints: list[str] | None = None
    for attempt in range(_TRIES):
        if attempt:
            await asyncio.sleep(_SETTLE_S)
        endpoints = await _try_pod(config, pod, other)
        if not endpoints:
            break
    return endpoints


async def _try_pod(config: KubernetesConfig, pod: Pod, other: Pod) -> list[str] | None:
    assert pod.agent is not None
    assert other.pristine is not None
    setting = f"HOST, PORT, WINDOW_S = {other.address!r}, {random.randrange(*_PORTS)}, {_WINDOW_S}\n"
    listening = asyncio.create_task(_run(config, other.pristine, setting + _LISTEN))
    try:
        tried = await _run(config, pod.agent, setting + _REACH)
        ended = time.monotonic()
        listener = await listening
    except SandboxError:
        if listening.done() and listening.exception() is not None:
            return None  # the other pod failed, not this one
        raise
    finally:
        listening.cancel()
    if endpoints := _found(tried):
        return endpoints
    # Without a connection, the result counts only if the listener ran for half of the attempt.
    listened_from = time.monotonic() - listener.seconds
    return [] if listener.exit_code == 0 and listened_from < ended - _WINDOW_S / 2 else None


async def _run(config: KubernetesConfig, agent: AgentClient, script: str) -> ExecResult:
    return await agent.call(
        "exec",
        responses.executed(_OUTPUT_CAP),
        timeout_s=20.0,
        argv=python_command(config, f"exec({script!r})"),
        cwd="/",
        env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
        stdin=b"",
        timeout_ms=20_000,
        output_cap=_OUTPUT_CAP,
    )


def _found(result: ExecResult) -> list[str]:
    if result.exit_code != 0:
        output = (result.stdout + result.stderr)[-500:].decode(errors="replace")
        raise SandboxStartError(f"the network probe failed: {output}")
    return result.stdout.decode(errors="replace").split()


def unenforced(found: Sequence[str]) -> str:
    """Return the message for an open network."""
    return (
        f"Sandboxes can connect to {', '.join(found)}: the cluster does not enforce the network policy. Use "
        "a network plugin that does (Cilium, Calico, …) and apply deploy/kubernetes/sandbox, or set "
        "sandbox.kubernetes.require_network_policy=false to run regardless"
    )
