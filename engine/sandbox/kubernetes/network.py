"""Whether the cluster really keeps sandboxes off the network: an unenforced policy looks like any other.

The first sandbox of a process tries to connect out before anybody gets to use it. What it tries first is the
cluster's own API, which every pod reaches where no policy is enforced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from engine.config.kubernetes import KubernetesConfig
from engine.errors import PreflightError, SandboxStartError
from engine.sandbox import responses
from engine.sandbox.client import AgentClient
from engine.sandbox.kubernetes.pod import Pod
from engine.sandbox.kubernetes.spec import python_command

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
_log = structlog.get_logger(__name__)


class NetworkProbe:
    """Checks once that sandboxes reach nothing.

    With ``require_network_policy`` a sandbox that does is refused; else it is only a warning.
    """

    def __init__(self, config: KubernetesConfig) -> None:
        self._config = config
        self._done = False
        self._lock = asyncio.Lock()

    async def check(self, pod: Pod) -> None:
        """Probe from ``pod`` unless that was done.

        Raises:
            PreflightError: sandboxes can open connections.
            SandboxError: the probe could not run in this pod; the next one is probed.
        """
        async with self._lock:
            if self._done:
                return
            assert pod.agent is not None
            found = await reachable(self._config, pod.agent, [pod.api] if pod.api else [])
            if found and self._config.require_network_policy:
                raise PreflightError(unenforced(found))
            if found:
                _log.warning("sandboxes are not cut off from the network", reachable=found)
            self._done = True


async def reachable(config: KubernetesConfig, agent: AgentClient, also: Sequence[Target]) -> list[str]:
    """What a command can connect to, of ``also`` and of usual places outside.

    A policy may take some seconds to reach a new pod's node, so that what can be reached is tried again.

    Raises:
        SandboxError: the probe could not run.
    """
    found: list[str] = []
    for attempt in range(_TRIES):
        if attempt:
            await asyncio.sleep(_SETTLE_S)
        found = await _try(config, agent, [*also, *_OUTSIDE])
        if not found:
            break
    return found


async def _try(config: KubernetesConfig, agent: AgentClient, targets: Sequence[Target]) -> list[str]:
    script = f"TARGETS = {list(targets)!r}\n{_PROBE}"
    result = await agent.call(
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
    if result.exit_code != 0:
        said = (result.stdout + result.stderr)[-500:].decode(errors="replace")
        raise SandboxStartError(f"whether sandboxes reach the network could not be tried: {said}")
    return result.stdout.decode(errors="replace").split()


def unenforced(found: Sequence[str]) -> str:
    """What to tell a person about a network that is open."""
    return (
        f"Sandboxes can connect to {', '.join(found)}: the cluster does not enforce the network policy. Use "
        "a network plugin that does (Cilium, Calico, …) and apply deploy/kubernetes/sandbox, or set "
        "sandbox.kubernetes.require_network_policy=false to run regardless"
    )
