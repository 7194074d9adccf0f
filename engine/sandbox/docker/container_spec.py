"""Create request of a sandbox's container, and the labels that identify it.

``container_config`` is a pure function of its arguments. The agent is sent over stdin (``bootstrap``): no
file is mounted or copied, and a daemon on another machine works as well. The agent is the container's init:
it reaps orphans while a command runs and kills the remaining processes after it. Docker's own ``--init`` is
not used, as under it the agent could not use ``kill(-1)``. To set another limit, add it to ``_host_config``.
"""

from __future__ import annotations

import functools
import marshal
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

import engine.sandbox.agent
from engine.config.sandbox import DockerConfig
from engine.processes import process_start
from engine.sandbox.agent.interpreters import launcher
from engine.sandbox.base import SandboxSpec
from engine.sandbox.docker.image import DockerImage
from engine.sandbox.ledger import boot_id
from engine.sandbox.seccomp.oci import docker_option

DOMAIN = "trainyard.dev"
SANDBOX_ID = f"{DOMAIN}/sandbox-id"
RUN_ID = f"{DOMAIN}/run-id"
NAME = f"{DOMAIN}/name"
DEADLINE = f"{DOMAIN}/deadline"
"""Unix time after which any reaper may remove the container."""
OWNER = f"{DOMAIN}/owner"
ROLE = f"{DOMAIN}/role"
SANDBOX, BASE_FILES = "sandbox", "pristine"

_MODULES = ("wire", "limits", "children", "processes", "files", "main")
_BOOT = (
    "import types; read = lambda size, data=b'': data if len(data) == size else "
    "read(size, data + (os.read(0, min(size - len(data), 65536)) or sys.exit('no agent came'))); "
    "package = sys.modules['agent'] = types.ModuleType('agent'); package.__path__ = []; "
    "text = read(int.from_bytes(read(4), 'big')); exec(compile(text, 'agent', 'exec')); "
    "sys.modules['agent.main'].main({'env': dict(os.environ)})"
)
_LOADER = """
import marshal
from _frozen_importlib_external import MAGIC_NUMBER
for name, source, code in marshal.loads(read(int.from_bytes(read(4), "big"))):
    module = sys.modules["agent." + name] = types.ModuleType("agent." + name)
    module.__package__ = "agent"
    same = MAGIC_NUMBER == {magic!r}
    exec(marshal.loads(code) if same else compile(source, "agent/" + name + ".py", "exec"), module.__dict__)
    setattr(package, name, module)
"""
"""Interpreters of the host's version run compiled code: compiling takes as long as their start."""
_MARSHAL_VERSION = 2
"""Oldest marshal format that exchanges text and bytes between all Python versions."""
_OPEN_FILES = 16_384
_SHM_BYTES = 64 << 20
_CORE_BYTES = 1
"""With 0 the kernel may still pipe cores to a handler outside of the container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOwner:
    """The process that owns a container, described so that others can check whether it still runs."""

    host: str
    boot: str
    namespace: int
    """Inode of the process namespace to which the pid belongs."""
    pid: int
    start: int

    @classmethod
    def this(cls) -> ContainerOwner:
        """Return the calling process as owner."""
        return cls(
            host=socket.gethostname(),
            boot=boot_id(),
            namespace=os.stat("/proc/self/ns/pid").st_ino,
            pid=os.getpid(),
            start=process_start(os.getpid()) or 0,
        )

    def label(self) -> str:
        """Return the owner as label text."""
        return f"{self.host}/{self.boot}/{self.namespace}/{self.pid}/{self.start}"

    @classmethod
    def parse(cls, label: str) -> ContainerOwner | None:
        """Parse a label; return None for malformed text."""
        parts = label.split("/")
        if len(parts) != 5 or not all(part.isdigit() for part in parts[2:]):
            return None
        namespace, pid, start = (int(part) for part in parts[2:])
        return cls(host=parts[0], boot=parts[1], namespace=namespace, pid=pid, start=start)

    def alive(self) -> bool | None:
        """Return whether the owner still runs; None when that cannot be determined here."""
        here = ContainerOwner.this()
        if (self.host, self.boot, self.namespace) != (here.host, here.boot, here.namespace):
            return None
        return process_start(self.pid) == self.start


def labels(sandbox_id: str, spec: SandboxSpec, owner: ContainerOwner) -> dict[str, str]:
    """Return the labels of a sandbox's container."""
    return {
        ROLE: SANDBOX,
        SANDBOX_ID: sandbox_id,
        RUN_ID: spec.run_id,
        NAME: spec.name,
        DEADLINE: str(int(time.time() + spec.limits.lifetime_s)),
        OWNER: owner.label(),
    }


@functools.cache
def bootstrap() -> bytes:
    """Return the agent for the container's stdin: a loader and modules, each after a four-byte length."""
    folder = Path(engine.sandbox.agent.__file__).parent
    sources = {name: (folder / f"{name}.py").read_text() for name in _MODULES}
    modules = [
        (name, source, marshal.dumps(compile(source, f"agent/{name}.py", "exec", dont_inherit=True)))
        for name, source in sources.items()
    ]
    parts = (_LOADER.format(magic=MAGIC_NUMBER).encode(), marshal.dumps(modules, _MARSHAL_VERSION))
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def container_config(
    spec: SandboxSpec,
    image: DockerImage,
    config: DockerConfig,
    *,
    labels: Mapping[str, str],
    quota: bool,
) -> dict[str, Any]:
    """Return the body of the request that creates a sandbox's container.

    Args:
        spec: the sandbox's specification.
        image: the image, present in the daemon.
        config: the backend's settings.
        labels: see ``labels``.
        quota: whether the storage driver can limit a container's disk use.
    """
    candidates = {"candidates": (image.python,)} if image.python else {}
    return {
        "Image": image.id,
        "Entrypoint": launcher(_BOOT, **candidates),
        "Cmd": [],
        "User": image.user if image.user is not None else config.user,
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Env": [],
        "Labels": dict(labels),
        "Tty": False,
        "OpenStdin": True,
        "StdinOnce": True,  # the agent exits when our connection, and with it its input, ends
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "StopSignal": "SIGKILL",
        "Healthcheck": {"Test": ["NONE"]},
        "NetworkDisabled": config.network == "none",
        "HostConfig": _host_config(spec, image, config, quota=quota),
    }


def _host_config(
    spec: SandboxSpec, image: DockerImage, config: DockerConfig, *, quota: bool
) -> dict[str, Any]:
    limits = spec.limits
    memory = limits.memory_mb << 20
    ulimits = [_ulimit("nofile", _OPEN_FILES), _ulimit("core", _CORE_BYTES)]
    if not quota:
        ulimits.append(_ulimit("fsize", limits.disk_mb << 20))
    host: dict[str, Any] = {
        "NetworkMode": config.network,
        "Memory": memory,
        "MemorySwap": memory,
        "NanoCpus": int(limits.cpus * 1e9),
        "PidsLimit": limits.processes,
        "ShmSize": min(_SHM_BYTES, limits.disk_mb << 20),
        "Ulimits": ulimits,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges", docker_option()],
        "Privileged": False,
        "IpcMode": "private",
        "Init": False,
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": ""},
        "Mounts": [
            {"Type": "bind", "Source": source, "Target": target, "ReadOnly": True}
            for source, target in image.binds
        ],
    }
    if quota:
        host["StorageOpt"] = {"size": f"{limits.disk_mb}m"}
    if config.runtime:
        host["Runtime"] = config.runtime
    return host


def _ulimit(name: str, value: int) -> dict[str, object]:
    return {"Name": name, "Soft": value, "Hard": value}


def base_files_config(image: DockerImage, owner: ContainerOwner, lifetime_s: float) -> dict[str, Any]:
    """Return the body of the request that creates the never-started container of base files."""
    return {
        "Image": image.id,
        "Entrypoint": ["/never-started"],
        "Cmd": [],
        "NetworkDisabled": True,
        "Labels": {ROLE: BASE_FILES, DEADLINE: str(int(time.time() + lifetime_s)), OWNER: owner.label()},
        "HostConfig": {"NetworkMode": "none", "LogConfig": {"Type": "none", "Config": {}}},
    }
