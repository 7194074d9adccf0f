"""Models over two ranks: what one process computes, in the memory of a shard."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from engine.models.weights.conversion import meta_network, published_tensors
from engine.models.weights.model_weights import expected_tensors
from engine.models.weights.opening import open_weights
from engine.models.weights.writing import write_safetensors
from tests.drills.ranks.sharding_script import empty, learn
from tests.unit.models.tiny_families import FAMILIES, write_tiny

UNEVEN: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 3},
    "llama": {"vocab_size": 321},
    "gpt_oss": {"num_local_experts": 5},
}
"""Rows that two ranks cannot share equally."""


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that two ranks found; they meet by the usual environment variables."""
    root = tmp_path_factory.mktemp("ranks")
    for family in FAMILIES:
        dtype = torch.bfloat16 if family == "llama" else torch.float32
        write_tiny(root / "families" / family, family, seed=2, dtype=dtype, **UNEVEN.get(family, {}))
        (root / "saved" / family).mkdir(parents=True)
        shutil.copy(root / "families" / family / "config.json", root / "saved" / family)
    write_large(root / "large")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.drills.ranks.sharding_script", str(root)]
    ranks = [
        subprocess.Popen(command, env={**shared, "RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    errors = [rank.communicate(timeout=800)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors)
    return root


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_and_gradients_are_those_of_one_process(folder: Path, family: str) -> None:
    alone = {frozen: learn(folder / "families" / family, None, frozen=frozen) for frozen in (False, True)}
    for ranks, found in torch.load(folder / f"{family}.pt").items():
        expected = alone["frozen" in ranks]
        assert set(found) == set(expected)
        for name, tensor in expected.items():
            if name.endswith("gradient"):
                bound = 1e-2 if "frozen" in ranks else 1e-5  # products are then rounded to bfloat16
                assert (found[name] - tensor).norm() <= bound * tensor.norm(), (ranks, name)
            else:
                assert torch.equal(found[name], tensor), (ranks, name)
                assert found[name].dtype == tensor.dtype


@pytest.mark.parametrize("family", FAMILIES)
def test_what_two_ranks_wrote_is_read_by_rows(folder: Path, family: str) -> None:
    written, published = folder / "saved" / family, folder / "families" / family
    model = empty(published)
    ours, theirs = open_weights(written, model), open_weights(published, model)
    assert set(ours.tensors) == set(theirs.tensors)
    for name, info in theirs.tensors.items():
        for start, stop in ((0, info.shape[0]), (1, 3), (info.shape[0] // 2 - 1, info.shape[0] // 2 + 2)):
            found, expected = (torch.cat(list(w.rows(name, start, stop))) for w in (ours, theirs))
            assert torch.equal(found, expected.float()), name


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_needs_the_memory_of_its_shard_and_one_tensor(folder: Path, rank: int) -> None:
    found = json.loads((folder / f"memory-{rank}.json").read_text())
    limit = 1.2 * found["shard"] + found["tensor"]
    assert limit < 0.8 * found["whole"], "the model is too small to tell"
    assert found["peak"] <= limit, found
