"""Command line and environment of a server, and the guard of its processes; without vLLM."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from engine.errors import EngineError, PreflightError
from engine.inference.vllm.clients.client import VllmClient
from engine.inference.vllm.servers.environment import INHERITED, find_interpreter
from engine.inference.vllm.servers.server import ServerCommand, VllmServer
from engine.processes.guarded import GuardedProcess, inherited_environment
from tests.builders.vllm_policies import pid_of


def make_command(**changes: object) -> ServerCommand:
    settings = {"model": Path("/m"), "python": Path("/p/bin/python"), "max_context": 2048}
    return ServerCommand(**settings | changes)  # type: ignore[arg-type]


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def test_cpu_servers_have_a_fixed_cache_size_and_compile_nothing() -> None:
    arguments = make_command(dtype="float32", cpu_cache_gib=0.5).arguments("10.0.0.7", 8123)
    assert arguments[:3] == ["/p/bin/python", "-m", "vllm.entrypoints.openai.api_server"]
    assert option(arguments, "--host") == "10.0.0.7"
    assert option(arguments, "--port") == "8123"
    assert option(arguments, "--kv-cache-memory-bytes") == str(2**29)
    assert option(arguments, "--generation-config") == "vllm"
    assert option(arguments, "--logprobs-mode") == "processed_logprobs"
    assert "--enforce-eager" in arguments
    assert "--skip-tokenizer-init" in arguments
    assert "--enable-lora" not in arguments
    environment = make_command().environment("key")
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["TORCHDYNAMO_DISABLE"] == "1"
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in environment


@pytest.mark.parametrize("devices", [("2", "3"), None], ids=["chosen", "those of the node"])
def test_gpu_servers_keep_their_compiled_kernels(devices: tuple[str, ...] | None) -> None:
    command = make_command(devices=devices, tensor_parallel=2, gpu_memory=0.7)
    arguments = command.arguments("127.0.0.1", 1)
    assert option(arguments, "--gpu-memory-utilization") == "0.7"
    assert option(arguments, "--tensor-parallel-size") == "2"
    assert "--enforce-eager" not in arguments
    environment = command.environment("key")
    assert environment.get("CUDA_VISIBLE_DEVICES") == (devices and ",".join(devices))
    assert "TORCHDYNAMO_DISABLE" not in environment


@pytest.mark.parametrize(("rank", "maximum"), [(1, "1"), (4, "8"), (64, "64"), (65, "128")])
def test_adapter_ranks_are_rounded_up_to_supported_ranks(rank: int, maximum: str) -> None:
    command = make_command(lora_rank=rank)
    assert option(command.arguments("127.0.0.1", 1), "--max-lora-rank") == maximum
    assert "--enable-lora" in command.arguments("127.0.0.1", 1)
    assert command.environment("key")["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"


def test_the_key_is_in_the_environment_and_never_on_the_command_line() -> None:
    server = VllmServer(make_command(), log=Path("/nowhere"))
    assert len(server.api_key) == 64
    assert server.api_key not in " ".join(make_command().arguments("127.0.0.1", 1))
    assert make_command().environment(server.api_key)["VLLM_API_KEY"] == server.api_key


def test_a_server_inherits_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = (
        "DATABASE_URL", "REDIS_URL", "TRAINYARD_ENDPOINTS", "TRAINYARD_TOKEN", "OPENAI_API_KEY", "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY", "VLLM_API_KEY", "SSH_AUTH_SOCK", "PYTHONPATH",
    )  # fmt: skip
    for name in secrets:
        monkeypatch.setenv(name, "hidden")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    assert "hidden" not in inherited_environment(INHERITED).values()
    assert "hidden" not in make_command().environment("key").values()
    assert inherited_environment(INHERITED)["NCCL_SOCKET_IFNAME"] == "lo"


def test_interpreters_without_vllm_are_refused_with_the_remedy() -> None:
    with pytest.raises(PreflightError, match=r"no vLLM.*make vllm"):
        find_interpreter(sys.executable)
    with pytest.raises(PreflightError, match="no program"):
        find_interpreter("/nowhere/python")


async def test_failed_starts_report_the_end_of_their_own_log(tmp_path: Path) -> None:
    """Output of an earlier start in the same file is left out."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no such model >&2\nexit 3\n")
    program.chmod(0o755)
    log = tmp_path / "logs" / "vllm.log"
    log.parent.mkdir()
    log.write_text("an earlier start\n")
    server = VllmServer(make_command(python=program), log=log)
    assert not server.is_alive()
    with pytest.raises(EngineError, match="with code 3(.|\n)*no such model") as raised:
        await server.start()
    assert raised.value.kind == "lost"
    assert "earlier" not in str(raised.value)
    assert not server.is_alive()


async def test_the_log_tail_reports_that_nothing_was_written(tmp_path: Path) -> None:
    server = VllmServer(make_command(), log=tmp_path / "log")
    assert server.log_tail() == "(nothing was written)"


def _is_gone(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _await_end(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + 120
    while not all(map(_is_gone, processes)):
        assert time.monotonic() < deadline, processes
        time.sleep(0.05)


async def test_servers_that_do_not_start_in_time_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, pids = tmp_path / "python", tmp_path / "pids"
    record = f"echo $$ $! >{pids}.part; mv {pids}.part {pids}"
    program.write_text(f"#!/bin/sh\nsleep 999 &\n{record}\nexec sleep 999\n")
    program.chmod(0o755)
    processes: list[psutil.Process] = []

    async def healthy(_client: VllmClient) -> bool:
        async with asyncio.timeout(120):
            while not pids.exists():
                await asyncio.sleep(0.01)
        processes[:] = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
        return False

    monkeypatch.setattr(VllmClient, "healthy", healthy)
    server = VllmServer(make_command(python=program, start_timeout_s=0), log=tmp_path / "log")
    with pytest.raises(EngineError, match="did not start within 0 s"):
        await server.start()
    assert not psutil.pid_exists(pid_of(server))
    assert len(processes) == 2
    _await_end(processes)


async def test_stop_is_safe_at_any_time(tmp_path: Path) -> None:
    """Stop before a start, and twice at once after a kill of the guard; its command ends too."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho $$\nexec sleep 999\n")
    program.chmod(0o755)
    server = VllmServer(make_command(python=program, start_timeout_s=0), log=tmp_path / "log")
    await server.stop()
    server.process = GuardedProcess()
    server.process.start(server.command.arguments("127.0.0.1", 1), {}, log=server.log)
    while not server.log.read_text().strip():
        await asyncio.sleep(0.01)
    command = psutil.Process(int(server.log.read_text()))
    assert server.is_alive()
    os.kill(pid_of(server), signal.SIGKILL)
    await asyncio.gather(server.stop(), server.stop())
    assert not server.is_alive()
    _await_end([command])
    await server.stop()
