"""Docker containers: configuration, labels, ownership, attached streams and removal."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import IO

import pytest

from engine.config.sandbox import DockerConfig
from engine.sandbox.agent.wire import decode, frame
from engine.sandbox.base import SandboxLimits, SandboxSpec
from engine.sandbox.docker.attach import AttachedStream
from engine.sandbox.docker.backend import DockerBackend
from engine.sandbox.docker.container import Container
from engine.sandbox.docker.container_spec import (
    DEADLINE,
    OWNER,
    RUN_ID,
    SANDBOX_ID,
    ContainerOwner,
    bootstrap,
    container_config,
    labels,
)
from engine.sandbox.docker.image import DockerImage
from engine.sandbox.docker.reaper import orphaned
from engine.sandbox.ledger import LedgerEntry
from engine.sandbox.seccomp.oci import docker_option

SPEC = SandboxSpec(
    image="repo/image:tag",
    run_id="42",
    name="train/0/task/1",
    limits=SandboxLimits(memory_mb=512, processes=64, disk_mb=256, cpus=1.5, lifetime_s=600),
)
IMAGE = DockerImage(id="sha256:abc", name="repo/image:tag")


def config(*, quota: bool = True, image: DockerImage = IMAGE, **settings: object) -> dict[str, object]:
    return container_config(SPEC, image, DockerConfig(**settings), labels={"a": "b"}, quota=quota)


def test_container_config_sets_limits_without_network_or_capabilities() -> None:
    created = config()
    entrypoint = created.pop("Entrypoint")
    assert isinstance(entrypoint, list)
    assert entrypoint[:2] == ["/bin/sh", "-c"]
    assert created == {
        "Image": "sha256:abc",
        "Cmd": [],
        "User": "",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Env": [],
        "Labels": {"a": "b"},
        "Tty": False,
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "StopSignal": "SIGKILL",
        "Healthcheck": {"Test": ["NONE"]},
        "NetworkDisabled": True,
        "HostConfig": {
            "NetworkMode": "none",
            "Memory": 512 << 20,
            "MemorySwap": 512 << 20,
            "NanoCpus": 1_500_000_000,
            "PidsLimit": 64,
            "ShmSize": 64 << 20,
            "Ulimits": [
                {"Name": "nofile", "Soft": 16384, "Hard": 16384},
                {"Name": "core", "Soft": 1, "Hard": 1},
            ],
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges", docker_option()],
            "Privileged": False,
            "IpcMode": "private",
            "Init": False,
            "LogConfig": {"Type": "none", "Config": {}},
            "RestartPolicy": {"Name": ""},
            "Mounts": [],
            "StorageOpt": {"size": "256m"},
        },
    }


@pytest.mark.parametrize("version", [MAGIC_NUMBER, b"another"])
def test_agent_is_started_over_stdin_as_bytecode_or_source(
    version: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.sandbox.docker.container_spec.MAGIC_NUMBER", version)
    local = replace(IMAGE, python=sys.executable)
    request = frame({"op": "exec", "id": 1, "argv": ["sh", "-c", "echo hi; exit 3"], "cwd": "/", "env": {},
                     "stdin": b"", "timeout_ms": 20_000, "output_cap": 100})  # fmt: skip
    command: list[str] = config(image=local)["Entrypoint"]  # type: ignore[assignment]
    env = {**os.environ, "HOME": "/somewhere"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def receive(stream: IO[bytes]) -> dict[str, object]:
            value = decode(stream.read(int.from_bytes(stream.read(4), "big")))
            assert isinstance(value, dict)
            return value

        process.stdin.write(bootstrap.__wrapped__() + request)
        process.stdin.flush()
        greeting = receive(process.stdout)
        reply = receive(process.stdout)
    assert greeting["pid"] == process.pid
    assert greeting["env"]["HOME"] == "/somewhere"  # type: ignore[index]
    assert (reply["exit_code"], reply["stdout"]) == (3, b"hi\n")
    assert process.returncode == 0  # the end of its input ends it


def test_labels_identify_sandbox_run_deadline_and_owner() -> None:
    created = labels("sb-1", SPEC, ContainerOwner.this())
    assert (created[SANDBOX_ID], created[RUN_ID]) == ("sb-1", "42")
    assert 590 < float(created[DEADLINE]) - time.time() < 610
    assert ContainerOwner.parse(created[OWNER]) == ContainerOwner.this()
    assert ContainerOwner.parse("something else") is None


def container(owner: ContainerOwner, *, left_s: float = 600, state: str = "running") -> dict[str, object]:
    return {"Labels": {OWNER: owner.label(), DEADLINE: f"{time.time() + left_s:.0f}"}, "State": state}


@pytest.mark.parametrize("state", ["running", "created", "exited"])
def test_containers_of_a_living_owner_are_kept_until_their_deadline(state: str) -> None:
    assert not orphaned(container(ContainerOwner.this(), state=state), time.time())
    assert not orphaned(container(ContainerOwner.this(), state=state, left_s=-5), time.time())
    assert orphaned(container(ContainerOwner.this(), state=state, left_s=-60), time.time())


@pytest.mark.parametrize("state", ["running", "created", "exited"])
def test_containers_of_a_dead_owner_are_orphaned(state: str) -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    reused = replace(ContainerOwner.this(), start=ContainerOwner.this().start - 1)
    for owner in (replace(ContainerOwner.this(), pid=process.pid), reused):
        assert orphaned(container(owner, state=state), time.time())


def test_containers_of_another_host_are_orphaned_when_exited_or_expired() -> None:
    stranger = replace(ContainerOwner.this(), host="elsewhere", boot="another")
    assert not orphaned(container(stranger), time.time())
    assert not orphaned(container(stranger, state="created"), time.time())
    assert orphaned(container(stranger, state="exited"), time.time())
    assert orphaned(container(stranger, left_s=-60), time.time())


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_attached_output_is_reassembled_from_chunks_of_any_size(size: int) -> None:
    ended: list[str] = []

    async def end() -> None:
        ended.append("asked")

    reader = asyncio.StreamReader()
    stream = AttachedStream(reader, end)

    def piece(kind: int, data: bytes) -> bytes:
        return bytes([kind, 0, 0, 0]) + len(data).to_bytes(4, "big") + data

    head = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\n\r\n"
    data = head + piece(1, b"hello ") + piece(2, b"oops") + piece(1, b"") + piece(1, b"world")
    for at in range(0, len(data), size):
        stream.data_received(data[at : at + size])
    stream.connection_lost(None)
    assert await reader.read() == b"hello world"
    assert (stream.stderr, ended) == (b"oops", ["asked"])


async def test_refused_attachment_reports_the_reason() -> None:
    async def end() -> None:
        pass

    stream = AttachedStream(asyncio.StreamReader(), end)
    stream.data_received(b"HTTP/1.1 404 Not Found\r\n\r\n{no such container}")
    with pytest.raises(Exception, match="no such container"):
        await stream.accepted


async def test_cancelled_removal_is_retried_later(tmp_path: Path) -> None:
    backend = DockerBackend(DockerConfig(host="unix:///nowhere"), tmp_path)
    entry = LedgerEntry.of_this_process("sb-1", SandboxSpec(image="i"))
    removed = backend._containers["sb-1"] = Container(
        backend.daemon, backend.ledger, entry, SandboxSpec(image="i")
    )

    async def interrupted() -> bool:
        raise asyncio.CancelledError

    async def gone() -> bool:
        return True

    with pytest.raises(asyncio.CancelledError):
        await backend._free(removed, interrupted())
    assert backend.population().existing == 1
    assert backend._leftovers == [removed], "the next one who comes by tries again"
    await backend._free(removed, gone())
    assert backend.population().existing == 0


def test_container_config_applies_settings_and_image_values() -> None:
    local = replace(IMAGE, user="1000", python="/opt/python", binds=(("/usr", "/usr"),))
    created = config(quota=False, image=local, network="bridge", runtime="runsc", user="nobody")
    host = created["HostConfig"]
    assert isinstance(host, dict)
    assert created["User"] == "1000"
    assert created["NetworkDisabled"] is False
    assert (host["NetworkMode"], host["Runtime"]) == ("bridge", "runsc")
    assert host["Mounts"] == [{"Type": "bind", "Source": "/usr", "Target": "/usr", "ReadOnly": True}]
    assert "StorageOpt" not in host
    assert {"Name": "fsize", "Soft": 256 << 20, "Hard": 256 << 20} in host["Ulimits"]
    assert created["Entrypoint"][-1] == "/opt/python"  # type: ignore[index]
    assert config(user="nobody")["User"] == "nobody"
