"""Adapters trained by two ranks match those of one, for a built-in and a published model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.models.loader import open_model, save_policy_checkpoint
from tests.unit.models.tiny_families import write_tiny
from tests.unit.trainer.builders.rl_model import make_model
from tests.unit.trainer.builders.rl_training_script import TOKENIZER_SIZE, make_tokenizer
from tests.unit.trainer.test_lora import TEMPLATE, train, write_run


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    folder = tmp_path / "policy"
    save_policy_checkpoint(folder, make_model(vocab=TOKENIZER_SIZE), make_tokenizer(), {})
    return folder


async def test_two_ranks_train_adapters_of_a_published_mixture_of_experts(tmp_path: Path) -> None:
    """Steps are proportional to gradients, as bfloat16 rounding decides their signs."""
    published = write_tiny(tmp_path / "published", "qwen3_moe", dtype=torch.bfloat16, chat_template=TEMPLATE)
    settings = {"lora_targets": (), "precision": "bf16", "epsilon": 1.0, "learning_rate": 1.0}
    adapters = []
    for name, grid in (("alone", {}), ("ranks", {"data_parallel": 2})):
        run_dir = tmp_path / name
        adapters.append(await train(write_run(run_dir, published, **settings, **grid), run_dir, 1))
    expected, ranks = adapters
    assert all(weight.abs().max() > 0 for name, weight in expected.items() if "lora_B" in name)
    for name, weight in expected.items():
        assert (ranks[name] - weight).norm() <= 0.05 * weight.norm(), name
    opened = open_model(str(tmp_path / "ranks" / "checkpoints" / "00001"), home=tmp_path).model
    base = open_model(str(published), home=tmp_path).model
    for (name, merged), plain in zip(opened.named_parameters(), base.parameters(), strict=True):
        if not ("self_attn" in name and "_proj" in name):
            assert torch.equal(merged, plain), name


@pytest.mark.parametrize("grid", [{"data_parallel": 2}, {"context_parallel": 2}])
async def test_adapters_of_two_ranks_match_those_of_one(
    tmp_path: Path, policy: Path, grid: dict[str, int]
) -> None:
    alone, ranks = tmp_path / "alone", tmp_path / "ranks"
    expected = await train(write_run(alone, policy), alone, 2)
    config = write_run(ranks, policy, **grid)
    await train(config, ranks, 1)
    resumed_adapters = await train(config, ranks, 1)  # resumed with the adapters of the checkpoint
    for name, weight in expected.items():
        assert (resumed_adapters[name] - weight).norm() <= 1e-5 * weight.norm(), name
