"""Construction of policies that sample with vLLM: model folder, devices and servers.

With CUDA a run's trainer uses the first visible devices, one for each rank, and its servers the next ones,
``policy.vllm.tensor_parallel`` each. With ``policy.vllm.transfer`` = ``ipc`` servers share the trainer's,
with ``policy.vllm.launcher`` = ``ray`` they use devices of their nodes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from engine.config.placement import server_bundles
from engine.config.policies import TransformerPolicyConfig, VllmConfig
from engine.config.run import TrainRun
from engine.errors import ConfigError, Problem
from engine.inference.endpoint.keys import VLLM_KEY, Endpoint, find_endpoint
from engine.inference.vllm.clients.client import VllmClient
from engine.inference.vllm.policy import VllmPolicy
from engine.inference.vllm.publishing.live_transfer import LiveTransfer, choose_transfer
from engine.inference.vllm.publishing.publication import Publisher, ServedModel
from engine.inference.vllm.replicas import Replica
from engine.inference.vllm.servers.environment import find_interpreter
from engine.inference.vllm.servers.server import ServerCommand, VllmServer
from engine.models.loader import OpenedModel, is_builtin, open_model, save_policy
from engine.models.precision import DTYPES, sampling_type
from engine.models.references import find_model
from engine.models.weights.adapted import BASE
from engine.models.weights.policy_files import ADAPTERS, read_provenance
from engine.models.weights.safetensors_folder import INDEX, SINGLE
from engine.orchestrator.context import RunContext
from engine.orchestrator.policies.frozen_weights import FrozenWeights
from engine.processes.launchers import LocalProcesses, ProcessLauncher
from engine.ray.cluster import has_gpus
from engine.ray.launcher import RayProcesses
from engine.trainer.checkpoints.checkpoint import Checkpoint
from engine.trainer.factory import training_device

ENGINES = "engines"
"""Folder of a run with its engines' model, weights and logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sampled:
    """Model that servers sample, and its precision and devices."""

    source: str
    """Reference of the model."""
    max_context: int
    """Maximum length of a conversation, tokens."""
    dtype: torch.dtype
    exact_trainer: bool = True
    """True where the trainer computes in float32."""
    lora_rank: int = 0
    first_device: int = 0
    """First CUDA device of the servers."""
    live: LiveTransfer | None = None
    """Transfer of new weights without files; None: files."""
    is_trained: bool = True
    """False where the weights in the servers' folder never change."""


async def start_training_engines(
    config: TrainRun, run: RunContext, checkpoint: Checkpoint | None
) -> VllmPolicy:
    """Start the servers of a training run; they sample after the first publication.

    Args:
        config: the run's configuration.
        run: this attempt.
        checkpoint: the checkpoint that it resumes from.

    Raises:
        ConfigError: there are too few CUDA devices, or weights cannot be transferred as configured.
        CheckpointError: the model is missing or unusable.
        PreflightError: there is no environment with vLLM, or no Ray cluster.
        RunStopped, FencedError, DeliveryError: the attempt must end while a cluster has no room.
    """
    trainer = config.trainer
    on_gpu = trainer.launcher != "ray" and training_device(trainer).type == "cuda"
    ranks = trainer.data_parallel * trainer.context_parallel
    source = str(checkpoint.path) if checkpoint else config.policy.checkpoint
    if trainer.lora_rank and (run.run_dir / BASE).exists():  # checkpoints have the adapters alone
        source = str(run.run_dir / BASE)
    sampled = _Sampled(
        source=source,
        max_context=config.longest_context,
        dtype=DTYPES[config.sampling_precision],
        exact_trainer=trainer.precision == "f32",
        lora_rank=trainer.lora_rank,
        first_device=ranks if on_gpu and config.policy.vllm.transfer != "ipc" else 0,
        live=None if trainer.lora_rank else choose_transfer(config.policy.vllm, on_gpu=on_gpu, ranks=ranks),
    )
    policy, _ = await _start(config.policy, run, sampled)
    return policy


async def open_sampling_engines(
    config: TransformerPolicyConfig, run: RunContext, *, max_context: int, version: int = 0
) -> VllmPolicy:
    """Start servers that sample a policy without a trainer, and verify that they serve it.

    Args:
        config: the policy.
        run: this attempt.
        max_context: maximum length of a conversation, tokens.
        version: policy version recorded with every token.

    Raises:
        ConfigError, CheckpointError, PreflightError: as ``start_training_engines``.
        PublicationError: no server proves that it serves the policy.
    """
    dtype = torch.float32 if _is_builtin(config, run.home) else sampling_type(config.precision)
    sampled = _Sampled(source=config.checkpoint, max_context=max_context, dtype=dtype, is_trained=False)
    policy, folder = await _start(config, run, sampled)
    try:
        opened = await asyncio.to_thread(
            open_model, str(folder), home=run.home, dtype=dtype, max_context=max_context
        )
        await policy.publish(version, FrozenWeights(opened.model))
    except BaseException:
        await policy.close()
        raise
    return policy


async def _start(
    config: TransformerPolicyConfig, run: RunContext, sampled: _Sampled
) -> tuple[VllmPolicy, Path]:
    """Return a policy whose servers start, and the folder that they start from."""
    folder, opened = await asyncio.to_thread(_prepare, run, sampled)
    max_context = min(sampled.max_context, opened.model.max_context)
    connect = await asyncio.to_thread(_connector, config, run, sampled, folder, max_context)
    vllm = config.vllm
    served = ServedModel(
        vocabulary=opened.model.vocab_size,
        max_context=max_context,
        dtype=sampled.dtype,
        exact_trainer=sampled.exact_trainer,
        base=str(folder),
        has_adapters=sampled.lora_rank > 0,
    )
    policy = VllmPolicy(
        [connect(number) for number in range(len(vllm.addresses) or vllm.replicas)],
        Publisher(
            vllm,
            served,
            folder=run.run_dir / ENGINES / "weights",
            live=sampled.live,
            stored=None if sampled.is_trained else folder,
        ),
        vllm,
        chat=await asyncio.to_thread(opened.chat),
        max_context=max_context,
        sink=run.sink,
        name=config.checkpoint,
    )
    policy.start()
    return policy, folder


def _prepare(run: RunContext, sampled: _Sampled) -> tuple[Path, OpenedModel]:
    """Return a folder that vLLM opens, and the model without its weights."""
    folder = model_folder(sampled.source, run.run_dir / ENGINES / "model", home=run.home, dtype=sampled.dtype)
    opened = open_model(str(folder), home=run.home, read=False)
    return folder, opened


def model_folder(ref: str, out: Path, *, home: Path, dtype: torch.dtype) -> Path:
    """Return a folder with config.json and safetensors of a model: its own, or an export.

    Args:
        ref: see ``engine.models.references``.
        out: folder of an export; replaced.
        home: the data folder.
        dtype: of an export.

    Raises:
        CheckpointError: there is no such model, or it is unusable.
    """
    model = find_model(ref, home=home)
    if model.folder is None or model.random:
        save_policy(out, open_model(ref, home=home, dtype=dtype), {"from": ref}, dtype=dtype)
        return out
    is_whole = any((model.folder / name).exists() for name in (SINGLE, INDEX))
    if is_whole and not (model.folder / ADAPTERS).exists():
        return model.folder
    from engine.models.weights.export import export_folder  # transformers takes seconds to import

    export_folder(model.folder, out, dtype=dtype)
    return out


def _connector(
    config: TransformerPolicyConfig, run: RunContext, sampled: _Sampled, folder: Path, max_context: int
) -> Callable[[int], Replica]:
    """Return a function that creates the replica with a given number."""
    vllm = config.vllm
    if vllm.addresses:
        servers = attached_servers(vllm)
        return lambda number: Replica.attached(
            f"engine-{number}",
            VllmClient(
                servers[number].address,
                api_key=servers[number].key.get_secret_value(),
                stall_timeout_s=vllm.stall_timeout_s,
            ),
        )
    python = find_interpreter(vllm.python)
    launcher, devices = _open_launcher(vllm, run, first_device=sampled.first_device)

    def start(number: int) -> Replica:
        command = ServerCommand(
            model=folder,
            python=python,
            max_context=max_context,
            dtype=str(sampled.dtype).removeprefix("torch."),
            tensor_parallel=vllm.tensor_parallel,
            devices=devices[number],
            gpu_memory=vllm.gpu_memory,
            cpu_cache_gib=vllm.cpu_cache_gib,
            max_batch=config.max_batch,
            lora_rank=sampled.lora_rank,
            start_timeout_s=vllm.start_timeout_s,
            extra=sampled.live.server_arguments() if sampled.live else (),
            variables=sampled.live.server_environment() if sampled.live else {},
        )
        name = f"engine-{number}"
        log = run.run_dir / ENGINES / f"{name}.log"
        return Replica(
            name=name, server=VllmServer(command, log=log, create=partial(launcher.create, number))
        )

    return start


def _open_launcher(
    vllm: VllmConfig, run: RunContext, *, first_device: int
) -> tuple[ProcessLauncher, Sequence[tuple[str, ...] | None]]:
    """Return the launcher of all servers, reserved until the run ends, and the devices of each server.

    Raises:
        ConfigError: there are too few CUDA devices.
        PreflightError: the run is no job of a Ray cluster.
        RunStopped, FencedError, DeliveryError: the attempt must end while the cluster has no room.
    """
    if vllm.launcher == "local":
        return LocalProcesses(), engine_devices(vllm, first=first_device)
    on_gpu = has_gpus()
    launcher = RayProcesses(server_bundles(vllm, gpus=on_gpu), name="engines", notice=run.notice())
    launcher.open()
    run.closing.callback(launcher.close)
    return launcher, [None if on_gpu else ()] * vllm.replicas


def _is_builtin(config: TransformerPolicyConfig, home: Path) -> bool:
    """Return whether f32 is chosen for a built-in policy, as by its own sampler."""
    folder = find_model(config.checkpoint, home=home).folder
    return config.precision == "auto" and (folder is None or is_builtin(read_provenance(folder)))


def attached_servers(config: VllmConfig) -> list[Endpoint]:
    """Return address and key of each running server that a policy attaches to.

    Raises:
        ConfigError: an endpoint is unknown to this process, or two of them are the same server.
    """
    servers: dict[str, Endpoint] = {}
    for name in config.addresses:
        endpoint = find_endpoint(name, variable=VLLM_KEY)
        # Endpoints have the address of the chat routes, which is below that of the server.
        address = endpoint.address.rstrip("/").removesuffix("/v1")
        if address in servers:
            raise ConfigError(
                Problem(f"names the server of '{name}' twice: leave one out", "policy.vllm.addresses")
            )
        servers[address] = endpoint.model_copy(update={"address": address})
    return list(servers.values())


def engine_devices(config: VllmConfig, *, first: int) -> list[tuple[str, ...]]:
    """Return the CUDA devices of each server, by their names in CUDA_VISIBLE_DEVICES; none without CUDA.

    Args:
        config: number and size of the servers.
        first: number of devices before theirs.

    Raises:
        ConfigError: there are too few.
    """
    if not torch.cuda.is_available():
        return [()] * config.replicas
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    count, size = torch.cuda.device_count(), config.tensor_parallel
    names = visible[:count] if len(visible) >= count and visible[0] else [str(i) for i in range(count)]
    wanted = first + config.replicas * size
    if wanted > count:
        raise ConfigError(
            f"policy.vllm.replicas × policy.vllm.tensor_parallel needs {config.replicas * size} CUDA devices "
            f"after the trainer's {first}, but there are {count}: lower them, or set policy.vllm.transfer to "
            "'ipc' to share the trainer's"
        )
    return [tuple(names[first + i * size : first + (i + 1) * size]) for i in range(config.replicas)]
