"""One vLLM server: its command line, its start, and the end of all of its processes."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine.errors import EngineError
from engine.inference.vllm.clients.client import VllmClient
from engine.inference.vllm.clients.facts import ServerFacts
from engine.inference.vllm.servers.environment import inherited_environment
from engine.processes import guard

_LOOPBACK = "127.0.0.1"
_WORKER = Path(__file__).parent / "worker"
_POLL_S = 0.2
_KILL_S = 5.0
_LOG_LINES = 25
_LEAVE_ZOMBIE = os.WEXITED | os.WNOWAIT
_CPU_BLOCK = 32
"""Tokens of a block of the KV cache, the unit of shared prefixes; with vLLM's 128 short turns share none."""
_CPU_BATCH_TOKENS = 2048
"""Tokens of a batch on the CPU, where a prompt is computed whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """Settings of one server."""

    model: Path
    """Folder with config.json and safetensors files."""
    python: Path
    """Interpreter whose environment has vLLM."""
    max_context: int
    """Maximum length of a prompt and its response, tokens."""
    dtype: str = "bfloat16"
    """Type of weights and activations: ``float32`` or ``bfloat16``."""
    tensor_parallel: int = 1
    devices: tuple[str, ...] = ()
    """CUDA devices, as in ``CUDA_VISIBLE_DEVICES``; empty: the server computes on the CPU."""
    gpu_memory: float = 0.85
    """Share of a GPU's memory for weights and KV cache together."""
    cpu_cache_gib: float = 1.0
    """Size of the KV cache on the CPU, GiB."""
    max_batch: int = 64
    """Maximum number of sequences sampled at once; more have to wait."""
    lora_rank: int = 0
    """Maximum rank of LoRA adapters; 0: the server loads none."""
    max_adapters: int = 2
    """Maximum number of LoRA adapters in one batch: those of the current and the previous version."""
    name: str = "policy"
    """Name of the model in requests."""
    port: int = 0
    """TCP port on the loopback interface; 0 takes a free one."""
    start_timeout_s: float = 600.0
    has_tokenizer: bool = False
    """True where the server loads the folder's tokenizer: needed for chat routes, not for token ids."""
    extra: tuple[str, ...] = ()
    """Further arguments of vLLM's command line."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables."""

    def arguments(self, port: int) -> list[str]:
        """Return the command line of the server."""
        flags = {
            "--model": self.model, "--served-model-name": self.name, "--host": _LOOPBACK, "--port": port,
            "--dtype": self.dtype, "--max-model-len": self.max_context, "--max-num-seqs": self.max_batch,
            "--tensor-parallel-size": self.tensor_parallel, "--logprobs-mode": "processed_logprobs",
            "--generation-config": "vllm", "--load-format": "safetensors",
            "--middleware": "trainyard_access.RequireKey",
            "--worker-extension-cls": "trainyard_worker.TrainyardWorker",
        }  # fmt: skip
        switches = ["--enable-scale-out", "--disable-uvicorn-access-log"]
        if self.devices:
            flags["--gpu-memory-utilization"] = self.gpu_memory
        else:
            switches += ["--enforce-eager"]  # graphs need a C++ compiler and do not pay on the CPU
            switches += [
                "--no-enable-chunked-prefill"
            ]  # a seeded request whose prompt is cut ends the engine
            flags["--max-num-batched-tokens"] = max(self.max_context, _CPU_BATCH_TOKENS)
            flags |= {"--block-size": _CPU_BLOCK, "--kv-cache-memory-bytes": int(self.cpu_cache_gib * 2**30)}
        if not self.has_tokenizer:
            switches += ["--skip-tokenizer-init"]
        if self.lora_rank:
            switches += ["--enable-lora"]
            flags |= {"--max-lora-rank": _lora_rank(self.lora_rank), "--max-loras": self.max_adapters}
        named = [str(part) for flag in flags.items() for part in flag]
        module = "vllm.entrypoints.openai.api_server"  # `vllm serve` looks for a distribution named vllm
        return [str(self.python), "-m", module, *named, *switches, *self.extra]

    def environment(self, key: str) -> dict[str, str]:
        """Return the environment of the server; ``key`` guards its routes."""
        path = os.pathsep.join([str(self.python.parent), os.environ.get("PATH", os.defpath)])
        fixed = {
            "PATH": path, "PYTHONPATH": str(_WORKER), "PYTHONUNBUFFERED": "1", "VLLM_API_KEY": key,
            "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        if self.lora_rank:
            fixed["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        if self.devices:
            fixed["CUDA_VISIBLE_DEVICES"] = ",".join(self.devices)
        else:
            fixed |= {
                "CUDA_VISIBLE_DEVICES": "",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
                "TORCHDYNAMO_DISABLE": "1",  # else the first request waits for a C++ compiler
            }  # fmt: skip
        return inherited_environment() | fixed | dict(self.variables)


class VllmServer:
    """A vLLM server of this run on this machine, in a session of its own; it ends with the run.

    Args:
        command: what to start.
        log: file to which the output of all its processes is appended.
    """

    def __init__(self, command: ServerCommand, *, log: Path) -> None:
        self.command = command
        self.log = log
        self.api_key = secrets.token_hex(32)
        self.address = ""
        """``http://HOST:PORT`` once started."""
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """Process id of the guard, which leads the session; None before the start."""
        return None if self._process is None else self._process.pid

    def client(self, *, stall_timeout_s: float = 120.0) -> VllmClient:
        """Return a client of the started server; the caller closes it."""
        return VllmClient(
            self.address, model=self.command.name, api_key=self.api_key, stall_timeout_s=stall_timeout_s
        )

    async def start(self) -> ServerFacts:
        """Start the server and wait until it is healthy; return its facts.

        Raises:
            EngineError: it ended, did not become healthy in time, or is of another version; the message has
                the last lines of its log.
        """
        port = self.command.port or _free_port()
        self.address = f"http://{_LOOPBACK}:{port}"
        self._spawn(port)
        client = self.client()
        try:
            await self._await_health(client)
            return await client.check()
        except BaseException:
            await self.stop()
            raise
        finally:
            await client.close()

    def is_alive(self) -> bool:
        """Return whether the server's processes run; it need not be healthy."""
        return self._process is not None and self._process.returncode is None and self._ending() is None

    async def stop(self) -> None:
        """End all processes of the server; safe to call at any time."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        if self._ending() is None:
            os.kill(process.pid, signal.SIGTERM)
        ending = asyncio.create_task(asyncio.to_thread(os.waitid, os.P_PID, process.pid, _LEAVE_ZOMBIE))
        await asyncio.wait([ending], timeout=guard.GRACE_S + _KILL_S)
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)  # also what a killed guard left behind
            await ending
            process.wait()
            assert process.stdin is not None
            process.stdin.close()

    def log_tail(self) -> str:
        """Return the last lines that this start of the server wrote to its log."""
        with self.log.open("rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - 16_384))
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])

    def _ending(self) -> os.waitid_result | None:
        """Return how the guard has ended, None while it runs.

        It stays a zombie until ``stop``: its number, which names the group to be killed, is not given away.
        """
        assert self._process is not None
        return os.waitid(os.P_PID, self._process.pid, _LEAVE_ZOMBIE | os.WNOHANG)

    def _spawn(self, port: int) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-I", guard.__file__, *self.command.arguments(port)],
                env=self.command.environment(self.api_key),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def _await_health(self, client: VllmClient) -> None:
        deadline = time.monotonic() + self.command.start_timeout_s
        while not await client.healthy():
            if (ending := self._ending()) is not None:
                raise EngineError(
                    f"the vLLM server ended while starting, with code {ending.si_status}; the end of "
                    f"{self.log}:\n{self.log_tail()}",
                    kind="lost",
                )
            if time.monotonic() > deadline:
                raise EngineError(
                    f"the vLLM server did not start within {self.command.start_timeout_s:g} s "
                    f"(policy.vllm.start_timeout_s); the end of {self.log}:\n{self.log_tail()}",
                    kind="lost",
                )
            await asyncio.sleep(_POLL_S)


def _free_port() -> int:
    with socket.create_server((_LOOPBACK, 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def _lora_rank(rank: int) -> int:
    """Return the smallest rank of vLLM's list that holds ``rank``."""
    return next(size for size in (1, 8, 16, 32, 64, 128, 256, 320, 512) if size >= rank)
