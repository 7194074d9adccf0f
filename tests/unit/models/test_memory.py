"""Memory plans compared with real updates of small models, and plans of large models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.config.learning.trainer import TrainerConfig
from engine.models.__main__ import main
from engine.models.adapters import add_adapters
from engine.models.base import LanguageModel
from engine.models.builtin.architectures import TransformerConfig
from engine.models.builtin.transformer import Transformer
from engine.models.memory.activations import measure_activations
from engine.models.memory.estimate import estimate_memory
from engine.models.memory.live_bytes import LiveBytes
from engine.models.memory.plan import GIB, plan_memory
from engine.models.published.networks import build_causal
from engine.models.published.pretrained import PretrainedModel
from engine.models.sizes import count_sizes
from engine.trainer.batch import Sample, make_microbatch
from engine.trainer.ranks import ALONE
from engine.trainer.scorer import Scorer
from tests.unit.models.test_arithmetic import QWEN3_4B, QWEN3_30B_A3B
from tests.unit.models.tiny_families import tiny_config

TOLERANCE = 0.06
TOKENS = 512
VOCAB = 1000


def builtin() -> LanguageModel:
    return Transformer(
        TransformerConfig(
            vocab_size=VOCAB,
            hidden_size=128,
            num_hidden_layers=5,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=16,
            intermediate_size=352,
        )
    )


def gemma() -> LanguageModel:
    config = tiny_config(
        "gemma3_text", hidden_size=128, num_hidden_layers=5, intermediate_size=352, vocab_size=VOCAB,
        num_attention_heads=8, num_key_value_heads=4, head_dim=16, sliding_window=64,
        layer_types=["full_attention"] * 5,
    )  # fmt: skip
    return PretrainedModel(build_causal(config))


def samples() -> list[Sample]:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, VOCAB, TOKENS + 1).astype(np.int32) for _ in range(2)]
    return [
        Sample(
            ids=row[:-1],
            positions=np.arange(TOKENS),
            targets=row[1:],
            sampler_logprobs=np.zeros(TOKENS, dtype=np.float32),
        )
        for row in rows
    ]


def measured_peak(model: LanguageModel, config: TrainerConfig) -> int:
    """Return the peak bytes of weights and tensors during two optimizer steps of two rows each."""
    scorer = Scorer(model, precision=config.precision, ranks=ALONE, recompute=config.activation_checkpointing)
    trained = [p for p in model.parameters() if p.requires_grad]
    batches = [make_microbatch((sample,), torch.device("cpu")) for sample in samples()]
    with LiveBytes() as live:
        optimizer = torch.optim.AdamW(trained)
        for _ in range(2):
            for batch in batches:
                logprobs, entropies = scorer(batch, 1.0)
                (logprobs + entropies).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    weights: int = sum(p.numel() * p.element_size() for p in model.parameters())
    peak: int = live.peak
    return weights + peak


@pytest.mark.parametrize(
    ("build", "settings"),
    [
        (builtin, {}),
        (gemma, {"lora_rank": 8, "activation_checkpointing": True}),
    ],
)
def test_planned_memory_equals_the_measured_peak_of_an_update(build: Any, settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    config = TrainerConfig(tokens_per_microbatch=TOKENS, **settings)
    model = build()
    if config.lora_rank:
        add_adapters(model, config, seed=0)
    autocast = torch.bfloat16 if config.precision == "bf16" else None
    activations = measure_activations(model, autocast=autocast)
    plan = plan_memory(count_sizes(model), activations, config, longest=TOKENS, device="cpu")
    peak = measured_peak(model, config)
    assert plan.total == pytest.approx(peak, rel=TOLERANCE), f"{peak / 2**20:.1f} MiB\n{plan.table()}"


def test_ranks_divide_weights_and_context_ranks_divide_tokens() -> None:
    model = builtin()
    sizes, activations = count_sizes(model), measure_activations(model)

    def parts(**settings: Any) -> dict[str, int]:
        config = TrainerConfig(tokens_per_microbatch=TOKENS, **settings)
        return {p.name: p.bytes for p in plan_memory(sizes, activations, config, longest=64).parts}

    single, data, context = parts(), parts(data_parallel=4), parts(context_parallel=4)
    for name in ("trained weights", "gradients", "optimizer"):
        assert data[name] == context[name] == pytest.approx(single[name] / 4, abs=1)
    assert data["activations of all layers"] == single["activations of all layers"]
    assert context["activations of all layers"] == single["activations of all layers"] / 4
    assert data["copies for products"] > single["copies for products"] == 0


def write_config(folder: Path, model_type: str, settings: dict[str, Any]) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"model_type": model_type, "dtype": "bfloat16", **settings})
    )
    return f"fresh:{folder}"


FITTING = ("precision=bf16", "activation_checkpointing=true", "tokens_per_microbatch=8192")


def command(ref: str, *settings: str, gib: float) -> int:
    options = [part for setting in settings for part in ("--set", setting)]
    return main(["plan", ref, *options, "--device-gib", str(gib), "--longest", "8192"])


@pytest.mark.parametrize(
    ("family", "sizes", "settings", "gib", "told"),
    [
        ("qwen3", QWEN3_4B, ("lora_rank=32",), 23.5, ("4.09 billion parameters", "fits 23.5 GiB")),
        ("qwen3_moe", QWEN3_30B_A3B, ("data_parallel=8",), 80, ("30.53 billion parameters, 3.35 active",)),
    ],
    ids=["adapters", "experts"],
)
def test_large_models_are_planned_without_their_weights(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    family: str,
    sizes: dict[str, Any],
    settings: tuple[str, ...],
    gib: float,
    told: tuple[str, ...],
) -> None:
    """Plan from configurations alone; the tests above measure scaled-down models."""
    assert command(write_config(tmp_path / "model", family, sizes), *FITTING, *settings, gib=gib) == 0
    out = capsys.readouterr().out
    assert all(text in out for text in told)


@pytest.mark.parametrize(("stored", "precision", "size"), [("bfloat16", "f32", 4), ("float32", "bf16", 2)])
def test_frozen_base_weights_are_planned_in_the_training_dtype(
    tmp_path: Path, stored: str, precision: Any, size: int
) -> None:
    ref = write_config(tmp_path / "model", "qwen3", {**tiny_config("qwen3").to_dict(), "dtype": stored})
    config = TrainerConfig(lora_rank=2, precision=precision)
    sizes, plan = estimate_memory(ref, config, home=tmp_path, longest=8)
    frozen = next(part.bytes for part in plan.parts if part.name == "frozen weights")
    assert frozen == size * (sizes.parameters - sizes.trained) > 0


def test_plan_rejects_untrainable_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tiny_config("qwen3").to_dict()
    quantised = {**settings, "quantization_config": {"quant_method": "fp8"}}
    assert command(write_config(tmp_path / "fp8", "qwen3", quantised), gib=80) == 2
    assert "quantised with 'fp8'" in capsys.readouterr().err
    assert command(write_config(tmp_path / "wrong", "qwen3", {**settings, "head_dim": "x"}), gib=80) == 2
    assert "cannot read the model in" in capsys.readouterr().err


def test_plan_reports_the_largest_parts_if_memory_is_exceeded() -> None:
    model = builtin()
    sizes, activations = count_sizes(model), measure_activations(model)
    config = TrainerConfig(tokens_per_microbatch=1_000_000)
    problem = plan_memory(sizes, activations, config, longest=64).problem(4 * GIB)
    assert problem is not None
    assert "The largest parts: activations of all layers" in problem
    assert "trainer.activation_checkpointing" in problem
