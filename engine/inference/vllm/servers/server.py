"""One vLLM server: its command line, its start and its end."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine.errors import EngineError, NodeLostError
from engine.inference.vllm.clients.client import VllmClient
from engine.inference.vllm.clients.facts import ServerFacts
from engine.inference.vllm.servers.environment import INHERITED
from engine.processes.guarded import GuardedProcess, Process, end_process

_WORKER = Path(__file__).parent / "worker"
_POLL_S = 0.2
_NODE_LOST_S = 0.5
"""Time after which another node is asked for, seconds."""
_LOG_LINES = 25
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
    devices: tuple[str, ...] | None = ()
    """CUDA devices, as in ``CUDA_VISIBLE_DEVICES``; None: those that its process finds; empty: the server
    computes on the CPU."""
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
    """TCP port; 0 takes a free one."""
    start_timeout_s: float = 600.0
    has_tokenizer: bool = False
    """True where the server loads the folder's tokenizer: needed for chat routes, not for token ids."""
    extra: tuple[str, ...] = ()
    """Further arguments of vLLM's command line."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables."""

    @property
    def on_gpu(self) -> bool:
        """Return whether the server computes on CUDA devices."""
        return self.devices != ()

    def arguments(self, host: str, port: int) -> list[str]:
        """Return the command line of the server, which listens on an address of its machine."""
        flags = {
            "--model": self.model, "--served-model-name": self.name, "--host": host, "--port": port,
            "--dtype": self.dtype, "--max-model-len": self.max_context, "--max-num-seqs": self.max_batch,
            "--tensor-parallel-size": self.tensor_parallel, "--logprobs-mode": "processed_logprobs",
            "--generation-config": "vllm", "--load-format": "safetensors",
            "--middleware": "trainyard_access.RequireKey",
            "--worker-extension-cls": "trainyard_worker.TrainyardWorker",
        }  # fmt: skip
        switches = ["--enable-scale-out", "--disable-uvicorn-access-log"]
        if self.on_gpu:
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
        """Return the variables of the server besides inherited ones; ``key`` guards its routes."""
        path = os.pathsep.join([str(self.python.parent), os.environ.get("PATH", os.defpath)])
        fixed = {
            "PATH": path, "PYTHONPATH": str(_WORKER), "PYTHONUNBUFFERED": "1", "VLLM_API_KEY": key,
            "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        if self.lora_rank:
            fixed["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        if self.devices:
            fixed["CUDA_VISIBLE_DEVICES"] = ",".join(self.devices)
        if not self.on_gpu:
            fixed |= {
                "CUDA_VISIBLE_DEVICES": "",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
                "TORCHDYNAMO_DISABLE": "1",  # else the first request waits for a C++ compiler
            }  # fmt: skip
        return fixed | dict(self.variables)


class VllmServer:
    """A vLLM server of this run; it ends with the run.

    Args:
        command: what to start.
        log: file to which the output of all its processes is appended.
        create: returns the process of the next start; may block. By default one of this machine.
    """

    def __init__(
        self, command: ServerCommand, *, log: Path, create: Callable[[], Process] = GuardedProcess
    ) -> None:
        self.command = command
        self.log = log
        self.process: Process | None = None
        """Process of the last start."""
        self._create = create
        self.api_key = secrets.token_hex(32)
        self.address = ""
        """``http://HOST:PORT`` once started."""
        self._log_start = 0

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
            PreflightError: there is no machine for it.
        """
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.process, self.address = await self._spawn()
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
        return self.process is not None and self.process.ending() is None

    async def stop(self) -> None:
        """End all processes of the server; safe to call at any time."""
        if self.process is not None:
            await asyncio.to_thread(end_process, self.process)

    def log_tail(self) -> str:
        """Return the last lines that this start of the server wrote to its log."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - 16_384))
                lines = log.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return "(nothing was written)"
        return "\n".join(lines[-_LOG_LINES:])

    async def _spawn(self) -> tuple[Process, str]:
        """Start the process and return it with its address.

        A cluster continues to place processes on a lost node for some seconds, until it notices the loss.
        """
        command, deadline = self.command, time.monotonic() + self.command.start_timeout_s
        while True:
            process = await asyncio.to_thread(self._create)
            try:
                host, port = await asyncio.to_thread(process.reserve, deadline - time.monotonic())
                port = command.port or port
                arguments, variables = command.arguments(host, port), command.environment(self.api_key)
                process.start(arguments, variables, inherited=INHERITED, log=self.log)
            except NodeLostError:
                process.kill()
                if time.monotonic() + _NODE_LOST_S >= deadline:
                    raise
                await asyncio.sleep(_NODE_LOST_S)
            except BaseException:
                process.kill()
                raise
            else:
                return process, f"http://{host}:{port}"

    async def _await_health(self, client: VllmClient) -> None:
        deadline = time.monotonic() + self.command.start_timeout_s
        while not await client.healthy():
            if self.process is not None and (ending := self.process.ending()) is not None:
                raise EngineError(
                    f"the vLLM server ended while starting, {ending.text}; the end of "
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


def _lora_rank(rank: int) -> int:
    """Return the smallest rank of vLLM's list that holds ``rank``."""
    return next(size for size in (1, 8, 16, 32, 64, 128, 256, 320, 512) if size >= rank)
