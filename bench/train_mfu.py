"""Model FLOPs utilisation (MFU) of an update of a 1B-parameter Qwen3 on one GPU, at 8K and 32K tokens.

Random weights, bfloat16 products, activation checkpointing, one trajectory per row. Without CUDA it exits
with a message. Run: ``python -m bench.train_mfu [--quick]``; results go to
``bench/results/train_mfu.json``.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import torch

from bench.harness import store
from engine.config.algorithm import AlgorithmConfig
from engine.config.trainer import TrainerConfig
from engine.models.builtin.transformer import Transformer, TransformerConfig
from engine.tokens import TokenRecord
from engine.trainer.trainer import Trainer
from tests.unit.engine.rl_builders import make_group, make_trajectory

BARS = {8192: 0.40, 32768: 0.35}
MODEL = TransformerConfig(
    vocab_size=151_936,
    hidden_size=2048,
    num_hidden_layers=16,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=6144,
    max_position_embeddings=65_536,
)


def measure(length: int, trajectories: int, repeats: int) -> dict[str, Any]:
    """Return the best MFU of several updates over trajectories of ``length`` tokens, half of them sampled."""
    model = Transformer(MODEL).to("cuda")
    trainer = Trainer(
        model,
        algorithm=AlgorithmConfig(),
        config=TrainerConfig(
            minibatches=1, precision="bf16", activation_checkpointing=True, tokens_per_microbatch=length
        ),
        max_context=length,
        seed=0,
    )
    rng = random.Random(0)
    tokens = TokenRecord(
        ids=[rng.randrange(MODEL.vocab_size) for _ in range(length)],
        mask=[position % 2 for position in range(length)],
        logprobs=[-12.0 * (position % 2) for position in range(length)],
    )
    members = [make_trajectory(float(i % 2), index=i, tokens=tokens) for i in range(trajectories)]
    group = make_group(members)
    torch.cuda.reset_peak_memory_stats()
    found = [trainer.update([group], temperature=1.0).metrics for _ in range(repeats + 1)][1:]
    best = max(found, key=lambda metrics: metrics.get("update/mfu", 0.0))
    return {
        "device": torch.cuda.get_device_name(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "length": length,
        "mfu": round(best.get("update/mfu", float("nan")), 3),
        "tokens_per_s": round(best["update/tokens_per_s"]),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        "bar": BARS[length],
    }


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="8K only, one repetition")
    quick = parser.parse_args().quick
    if not torch.cuda.is_available():
        print("skipped: torch sees no CUDA device")
        return
    lengths = list(BARS)[: 1 if quick else None]
    rows = [measure(length, 4 if quick else 8, 1 if quick else 3) for length in lengths]
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    store("train_mfu", rows, quick=quick)


if __name__ == "__main__":
    main()
