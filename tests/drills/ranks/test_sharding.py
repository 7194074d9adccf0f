"""Two ranks load a large model, each with the memory of its shard and one tensor."""

from __future__ import annotations

import gc
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from transformers import AutoConfig

from engine.models.published.networks import build_causal
from engine.models.published.pretrained import PretrainedModel
from engine.models.sharding import load_weights, shard
from engine.models.weights.checkpoint_folder import open_weights
from engine.models.weights.conversion import meta_network, published_tensors
from engine.models.weights.model_weights import expected_tensors
from engine.models.weights.writing import write_safetensors
from tests.builders.process_memory import forget_peak, memory
from tests.unit.trainer.builders.rank_pair import rank_pair


def write_large(folder: Path) -> None:
    """Write a model of half a gigabyte in float32, one file at a time."""
    config = AutoConfig.for_model(
        "qwen3_moe", vocab_size=64_000, hidden_size=512, intermediate_size=512, num_hidden_layers=3,
        num_attention_heads=8, num_key_value_heads=2, head_dim=64, num_experts=32, num_experts_per_tok=2,
        moe_intermediate_size=384, decoder_sparse_step=1, tie_word_embeddings=False,
    )  # fmt: skip
    config.save_pretrained(folder)
    network = meta_network(config)
    infos = published_tensors(expected_tensors(network), network, torch.bfloat16)
    tensors = ((name, torch.ones(info.shape, dtype=info.dtype)) for name, info in infos.items())
    write_safetensors(folder, infos, tensors, max_file_bytes=64 << 20)


class Root(nn.Module):
    """Root module of all parameters."""

    def __init__(self, model: PretrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, *_: Tensor) -> Tensor:
        raise AssertionError


def measure(folder: Path) -> dict[str, int]:
    """Load a large model; return the increase of peak memory, and the sizes of its parts."""
    model = PretrainedModel(build_causal(AutoConfig.from_pretrained(folder), dtype=torch.float32, meta=True))
    source = open_weights(folder, model)
    root = Root(model)
    shard(root, model.blocks, init_device_mesh("cpu", (2,)), compute=None)
    gc.collect()
    forget_peak()
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


def test_loading_a_shard_needs_the_memory_of_the_shard_and_one_tensor(tmp_path: Path) -> None:
    write_large(tmp_path / "model")
    with rank_pair(tmp_path, __name__) as pair:
        for sizes in pair.run(measure, tmp_path / "model"):
            limit = 1.2 * sizes["shard"] + sizes["tensor"]
            assert limit < 0.8 * sizes["whole"], "the model is too small to tell"
            assert sizes["peak"] <= limit, sizes
