"""One rank of two that share models: ``python -m tests.drills.ranks.sharding_script FOLDER``, by ``env://``."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from transformers import AutoConfig

from engine.config.trainer import TrainerConfig
from engine.models.adapters import add_adapters
from engine.models.attention import Segments
from engine.models.published.networks import build_causal
from engine.models.published.pretrained import PretrainedModel
from engine.models.sharding import load_weights, shard
from engine.models.weights.model_weights import stored_tensors
from engine.models.weights.opening import open_weights

CPU = torch.device("cpu")
LENGTHS = (9, 14, 5, 11)


class Root(nn.Module):
    """A loss of a model; all that touches weights happens inside."""

    def __init__(self, model: PretrainedModel, *, low: bool = False) -> None:
        super().__init__()
        self.model = model
        self.low = low

    def forward(self, sequences: list[Tensor], factors: list[Tensor]) -> Tensor:
        segments = Segments.whole([len(ids) for ids in sequences], CPU)
        head = self.model.head
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            hidden = self.model.packed_hidden(torch.cat(sequences), segments)
        logits = hidden.float() @ head.weight.float().T * head.scale
        logits = logits if head.softcap is None else head.softcap * torch.tanh(logits / head.softcap)
        return (logits * torch.cat(factors)).sum()


def batch(vocabulary: int) -> tuple[list[Tensor], list[Tensor]]:
    """Sequences, and a factor for each of their logits."""
    generator = torch.Generator().manual_seed(3)
    ids = [torch.randint(5, 300, (length,), generator=generator) for length in LENGTHS]
    return ids, [torch.randn(length, vocabulary, generator=generator) for length in LENGTHS]


def empty(folder: Path, dtype: torch.dtype = torch.float32) -> PretrainedModel:
    return PretrainedModel(build_causal(AutoConfig.from_pretrained(folder), dtype=dtype, meta=True))


def learn(
    folder: Path,
    mesh: DeviceMesh | None,
    *,
    offload: bool = False,
    frozen: bool = False,
    saved: Path | None = None,
) -> dict[str, Tensor]:
    """Return weights and gradients, from this rank's part of the sequences.

    Args:
        folder: of the model.
        mesh: ranks that share it.
        offload: keep the shards in the host's memory.
        frozen: train adapters alone, over a base in bfloat16.
        saved: where the ranks write their shards.
    """
    model = empty(folder, torch.bfloat16 if frozen else torch.float32)
    model.set_activation_checkpointing(True)
    source = open_weights(folder, model)
    if frozen:
        add_adapters(model, TrainerConfig(lora_rank=2, lora_targets=("q_proj", "o_proj")), seed=0)
    root = Root(model, low=frozen)
    if mesh is not None:
        shard(root, model.blocks, mesh, compute=None, offload=offload)
    load_weights(root, model, source, CPU, offload=offload)
    with torch.no_grad():
        for parameter in model.parameters():
            if frozen and parameter.requires_grad:
                parameter.fill_(0.01)
    rank, size = (0, 1) if mesh is None else (mesh.get_rank(), mesh.size())
    ids, factors = batch(model.vocab_size)
    root(ids[rank::size], factors[rank::size]).backward()
    if saved is not None:
        save({"model": stored_tensors(model)}, checkpoint_id=saved / "shards")
    found = {}
    for name, parameter in model.named_parameters():
        found[name] = whole(parameter.detach())
        if parameter.requires_grad:
            assert parameter.grad is not None
            found[f"{name} gradient"] = whole(parameter.grad)
    return found


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def memory(name: str) -> int:
    """Return a number of ``/proc/self/status`` in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def measure(folder: Path, mesh: DeviceMesh) -> dict[str, int]:
    """Load a large model; return the peak of this process's memory above what it had before."""
    model = empty(folder)
    source = open_weights(folder, model)
    root = Root(model)
    shard(root, model.blocks, mesh, compute=None)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = memory("VmRSS:")
    load_weights(root, model, source, CPU)
    peak = memory("VmHWM:") - before
    locals_ = [p.to_local() for p in model.parameters() if isinstance(p, DTensor)]
    assert all((local == local.flatten()[0]).all() for local in locals_)
    return {
        "peak": peak,
        "shard": sum(local.numel() * local.element_size() for local in locals_),
        "whole": sum(p.numel() * p.element_size() for p in model.parameters()),
        "tensor": max(info.num_bytes for info in source.tensors.values()),
    }


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    meshes = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("all", "alone"))
    found = measure(folder / "large", meshes["all"])
    (folder / f"memory-{dist.get_rank()}.json").write_text(json.dumps(found))
    for family in sorted(path for path in (folder / "families").iterdir()):
        results = {
            "two ranks": learn(family, meshes["all"], saved=folder / "saved" / family.name),
            "two ranks, frozen": learn(family, meshes["all"], frozen=True),
            "two ranks with offload": learn(family, meshes["all"], offload=True),
            "one rank": learn(family, meshes["alone"]),
        }
        if dist.get_rank() == 0:
            torch.save(results, folder / f"{family.name}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
