"""Sharding of a model over ranks, and loading of its weights shard by shard.

    model = …                                    parameters on the meta device, buffers computed
    shard(root, model.blocks, mesh, …)           FSDP2: a rank owns a part of every parameter
    load_weights(root, model, source, device)    allocates the rank's shards and fills them one by one

No process ever holds more than its shards and one piece of a tensor. Without a mesh the same calls load a
whole model into one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from engine.models.weights.model_weights import tied_names
from engine.models.weights.source import WeightSource, copy_rows


def shard(
    root: nn.Module,
    blocks: Iterable[nn.Module],
    mesh: DeviceMesh,
    *,
    compute: torch.dtype | None,
    offload: bool = False,
) -> None:
    """Shard the parameters of a module over all ranks of a mesh with FSDP2.

    Gradients are summed over the ranks, never averaged: ranks compute parts of one sum.

    Args:
        root: module whose ``forward`` contains every use of a parameter.
        blocks: submodules, gathered one at a time.
        mesh: one-dimensional.
        compute: type of gathered parameters; gradients are then reduced in float32. None: their own type.
        offload: keep shards, gradients and optimizer state in the host's memory.
    """
    precision = MixedPrecisionPolicy(
        param_dtype=compute,
        reduce_dtype=None if compute is None else torch.float32,
        cast_forward_inputs=False,
    )
    policy = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if offload else OffloadPolicy()
    for module in (*blocks, root):
        fully_shard(module, mesh=mesh, mp_policy=precision, offload_policy=policy)
    for part in root.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # gloo cannot average


def load_weights(
    root: nn.Module, model: nn.Module, source: WeightSource, device: torch.device, *, offload: bool = False
) -> None:
    """Allocate a model's parameters on ``device`` and fill them and its persistent buffers.

    Adapters are allocated, but not filled.

    Args:
        root: as given to ``shard``; without sharding, the model.
        model: its parameters are on the meta device, or are overwritten.
        source: the result of ``open_weights``.
        device: of computation.
        offload: as given to ``shard``.

    Raises:
        CheckpointError: the files of ``source`` became unreadable.
    """
    materialise(root, device, offload=offload)
    state = model.state_dict(keep_vars=True)
    # Stored names lack those of the wrappers that peft puts around adapted layers.
    named = {name.replace(".base_layer.", "."): tensor for name, tensor in state.items()}
    fill({name: tensor for name, tensor in named.items() if name in source.tensors}, source)


def materialise(root: nn.Module, device: torch.device, *, offload: bool = False) -> None:
    """Move a model to a device; parameters on the meta device get memory with arbitrary values.

    Args:
        root: the outermost sharded module, or a model that is not sharded.
        device: of computation.
        offload: parameters stay in the host's memory, and only buffers move.
    """
    storage = torch.device("cpu") if offload else device

    def place(tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device=storage) if tensor.is_meta else tensor.to(storage)

    ties = tied_names(root)
    root._apply(place)  # type: ignore[no-untyped-call]
    for first, *others in ties:  # ``_apply`` split tied parameters
        for name in others:
            owner, _, attribute = name.rpartition(".")
            setattr(root.get_submodule(owner), attribute, root.get_parameter(first))
    if storage != device:
        for module in root.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))


@torch.no_grad()
def fill(tensors: Mapping[str, Tensor], source: WeightSource) -> None:
    """Fill tensors from stored tensors of the same names; of a sharded one, only this rank's rows."""
    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor):
            shape, offset = compute_local_shape_and_global_offset(
                tensor.shape, tensor.device_mesh, tensor.placements
            )
            assert tuple(shape[1:]) == tuple(tensor.shape[1:]), "FSDP2 shards rows"
            local = tensor.to_local()
            if len(local):
                copy_rows(source, name, local, offset[0])
        else:
            copy_rows(source, name, tensor)
