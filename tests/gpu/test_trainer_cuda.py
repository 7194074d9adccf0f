"""The trainer on a CUDA device computes what it computes on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config.algorithm import AlgorithmConfig
from engine.config.trainer import TrainerConfig
from engine.models.attention import Segments, attend
from engine.models.base import Head
from engine.models.builtin.transformer import Transformer
from engine.models.logprobs import token_logprobs
from engine.models.opening import save_policy_checkpoint
from engine.trainer.group import TrainerGroup
from engine.trainer.rank import RankSettings
from engine.trainer.trainer import Trainer
from tests.unit.engine.rl_model import VOCAB, make_groups, make_model
from tests.unit.engine.rl_training_script import TOKENIZER_SIZE, make_tokenizer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
REWARDS = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]


def updated(device: str, *, vocab: int = VOCAB, **settings: Any) -> tuple[Transformer, dict[str, float]]:
    model = make_model(vocab=vocab).to(device)
    config = TrainerConfig(**{"minibatches": 2, "learning_rate": 1e-3, "threads": 1} | settings)
    trainer = Trainer(model, algorithm=AlgorithmConfig(), config=config, max_context=64, seed=5)
    metrics = trainer.update(make_groups(make_model(), REWARDS), temperature=1.0).metrics
    return model.cpu(), metrics


def flat(model: Transformer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_float32_equals_the_cpu() -> None:
    (ours, metrics), (theirs, expected) = updated("cuda"), updated("cpu")
    assert (flat(ours) - flat(theirs)).norm() <= 1e-5 * flat(theirs).norm()
    assert metrics["loss/value"] == pytest.approx(expected["loss/value"], rel=1e-4, abs=1e-7)
    assert metrics["mismatch/max"] <= 1e-4


def test_bfloat16_moves_the_same_way() -> None:
    start = flat(make_model())
    precise, coarse = (flat(updated("cuda", precision=name)[0]) - start for name in ("f32", "bf16"))
    assert torch.nn.functional.cosine_similarity(coarse, precise, dim=0) > 0.9


@pytest.mark.parametrize("kv_heads", [2, 8])
def test_the_variable_length_kernel_attends_like_separate_sequences(kv_heads: int) -> None:
    lengths = [130, 1, 64, 317]
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(sum(lengths), heads, 64, device="cuda", generator=generator)
        for heads in (8, kv_heads, kv_heads)
    )
    segments = Segments.whole(lengths, torch.device("cuda"))
    precise = attend(q, k, v, segments)
    fused = attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), segments)
    assert (fused.float() - precise).abs().max() <= 0.05


def test_log_probabilities_need_a_fraction_of_the_tables_memory() -> None:
    hidden = torch.randn(8192, 512, device="cuda", requires_grad=True)
    weight = torch.randn(151_936, 512, device="cuda", requires_grad=True)
    targets = torch.randint(151_936, (8192,), device="cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    token_logprobs(hidden, Head(weight=weight), targets, 1.0)[0].sum().backward()  # type: ignore[no-untyped-call]
    table = 8192 * 151_936 * 4
    assert torch.cuda.max_memory_allocated() - before < table / 2


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("grid", [{"data_parallel": 2}, {"context_parallel": 2}])
def test_two_devices_are_one(grid: dict[str, int], tmp_path: Path) -> None:
    alone, _ = updated("cuda", vocab=TOKENIZER_SIZE)
    model = make_model(vocab=TOKENIZER_SIZE).to("cuda")
    save_policy_checkpoint(tmp_path, model, make_tokenizer(), {})
    settings = RankSettings(
        policy=str(tmp_path),
        reference=None,
        home=tmp_path,
        algorithm=AlgorithmConfig(),
        config=TrainerConfig(minibatches=2, learning_rate=1e-3, threads=1, **grid),
        max_context=64,
        seed=5,
        device="cuda",
    )
    group = TrainerGroup(settings, sampler=model)
    try:
        group.update(make_groups(make_model(), REWARDS), temperature=1.0)
        assert (flat(model.cpu()) - flat(alone)).norm() <= 1e-5 * flat(alone).norm()
    finally:
        group.close()
