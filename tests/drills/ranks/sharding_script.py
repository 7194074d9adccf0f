"""One rank of two that load a large model: ``python -m tests.drills.ranks.sharding_script FOLDER``."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from transformers import AutoConfig

from engine.models.published.networks import build_causal
from engine.models.published.pretrained import PretrainedModel
from engine.models.sharding import load_weights, shard
from engine.models.weights.opening import open_weights


class Root(nn.Module):
    """A module around everything that touches a parameter."""

    def __init__(self, model: PretrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, *_: Tensor) -> Tensor:
        raise AssertionError


def memory(name: str) -> int:
    """Return a number of ``/proc/self/status`` in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def measure(folder: Path, mesh: DeviceMesh) -> dict[str, int]:
    """Load a large model; return the peak of this process's memory above what it had before."""
    model = PretrainedModel(build_causal(AutoConfig.from_pretrained(folder), dtype=torch.float32, meta=True))
    source = open_weights(folder, model)
    root = Root(model)
    shard(root, model.blocks, mesh, compute=None)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = memory("VmRSS:")
    load_weights(root, model, source, torch.device("cpu"))
    peak = memory("VmHWM:") - before
    locals_ = [p.to_local() for p in model.parameters() if isinstance(p, DTensor)]
    assert all((local == local.flatten()[0]).all() for local in locals_)
    return {
        "peak": peak,
        "shard": sum(local.numel() * local.element_size() for local in locals_),
        "whole": sum(p.numel() * p.element_size() for p in model.parameters()),
        "tensor": max(info.num_bytes for info in source.tensors.values()),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = measure(Path(sys.argv[1]), init_device_mesh("cpu", (2,)))
    Path(sys.argv[1], f"memory-{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
