"""Two ranks load a large model, each in the memory of its shard and one tensor."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from transformers import AutoConfig

from engine.models.weights.conversion import meta_network, published_tensors
from engine.models.weights.model_weights import expected_tensors
from engine.models.weights.writing import write_safetensors


def write_large(folder: Path) -> None:
    """Write a model of half a gigabyte in float32, a file at a time."""
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


def test_a_rank_needs_the_memory_of_its_shard_and_one_tensor(tmp_path: Path) -> None:
    write_large(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.drills.ranks.sharding_script", str(tmp_path)]
    ranks = [
        subprocess.Popen(command, env={**shared, "RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    errors = [rank.communicate(timeout=800)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors)
    for rank in range(2):
        found = json.loads((tmp_path / f"memory-{rank}.json").read_text())
        limit = 1.2 * found["shard"] + found["tensor"]
        assert limit < 0.8 * found["whole"], "the model is too small to tell"
        assert found["peak"] <= limit, found
