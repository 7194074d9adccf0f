"""Model FLOPs utilisation (MFU) of updates of Qwen3 shapes on one GPU, at 8K and 32K tokens, full and LoRA.

Random weights, bfloat16 products, activation checkpointing, one trajectory per row. Cases that do not fit the
device by the memory plan are left out with the reason. Without CUDA it exits with a message; ``--device cpu``
runs tiny shapes instead. Run: ``python -m bench.train_mfu [--quick] [--device cpu]``; results go to
``bench/results/train_mfu.json``.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig

from bench.harness import store
from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.models.memory.activations import measure_activations
from engine.models.memory.plan import plan_memory
from engine.models.published.networks import build_causal
from engine.models.published.pretrained import PretrainedModel
from engine.models.sharding import materialise
from engine.models.sizes import count_sizes
from engine.tokens import TokenRecord
from engine.trainer.trainer import Trainer
from tests.unit.trainer.builders.rl_builders import make_group, make_trajectory

BARS = {8192: 0.45, 32_768: 0.40}
"""Share of the device's peak to reach, by tokens of a row."""
_QWEN3 = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "tie_word_embeddings": True,
          "max_position_embeddings": 40_960}  # fmt: skip
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "qwen3-0.6b": {**_QWEN3, "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
                   "intermediate_size": 3072},
    "qwen3-1.7b": {**_QWEN3, "hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16,
                   "intermediate_size": 6144},
    "qwen3-4b": {**_QWEN3, "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32,
                 "intermediate_size": 9728},
}  # fmt: skip
TINY = {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 500, "hidden_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
        "tie_word_embeddings": True}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One measurement."""

    name: str
    shape: Mapping[str, Any]
    length: int
    lora: bool
    compiled: bool = False

    @property
    def label(self) -> str:
        """Return the case in words."""
        kind = "LoRA" if self.lora else "full"
        return f"{self.name} {self.length} {kind}{' compiled' if self.compiled else ''}"

    def settings(self) -> TrainerConfig:
        """Return the settings of the case's updates."""
        return TrainerConfig(
            minibatches=1,
            precision="bf16",
            activation_checkpointing=True,
            tokens_per_microbatch=max(64, self.length),
            lora_rank=32 if self.lora else 0,
        )


def cases(*, quick: bool, tiny: bool) -> Iterator[Case]:
    """Yield the measured cases, the most important first."""
    if tiny:
        yield from (Case("tiny", TINY, 256, lora) for lora in (False, True))
        return
    for length in list(BARS)[: 1 if quick else None]:
        for name, shape in SHAPES.items():
            yield from (Case(name, shape, length, lora) for lora in (False, True))
    yield Case("qwen3-1.7b", SHAPES["qwen3-1.7b"], 8192, lora=False, compiled=True)


def build(case: Case, device: torch.device, *, meta: bool) -> PretrainedModel:
    """Return the model with random weights; a base under adapters in bfloat16."""
    config = AutoConfig.for_model("qwen3", **case.shape)
    dtype = torch.bfloat16 if case.lora else torch.float32
    model = PretrainedModel(build_causal(config, dtype=dtype, meta=True))
    if not meta:
        materialise(model, device)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(1.0) if parameter.dim() == 1 else parameter.normal_(std=0.02)
    return model


def why_not(case: Case, device: torch.device) -> str | None:
    """Return the reason why a case does not fit the device; None if it fits."""
    if device.type != "cuda":
        return None
    config, model = case.settings(), build(case, device, meta=True)
    if case.lora:
        from engine.models.adapters import add_adapters

        add_adapters(model, config, seed=0)
    activations = measure_activations(model, autocast=torch.bfloat16)
    plan = plan_memory(count_sizes(model), activations, config, longest=case.length)
    return plan.problem(torch.cuda.get_device_properties(device).total_memory)


def measure(case: Case, device: torch.device, *, trajectories: int, repeats: int) -> dict[str, Any]:
    """Return the best of several updates over trajectories of ``length`` tokens, half of them sampled."""
    if (reason := why_not(case, device)) is not None:
        return {"case": case.label, "left_out": reason}
    model = build(case, device, meta=False)
    trainer = Trainer(
        model, algorithm=AlgorithmConfig(), config=case.settings(), max_context=case.length, seed=0
    )
    if case.compiled:
        for block in model.blocks:
            block.compile()
    rng = np.random.default_rng(0)
    sampled = np.arange(case.length + 1) % 2 == 1
    members = [
        make_trajectory(
            float(i % 2),
            index=i,
            tokens=TokenRecord(
                ids=rng.integers(0, case.shape["vocab_size"], case.length + 1),
                mask=sampled,
                logprobs=np.where(sampled, -12.0, 0.0),
            ),
        )
        for i in range(trajectories)
    ]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    updates = [trainer.update([make_group(members)], temperature=1.0).metrics for _ in range(repeats + 1)][1:]
    trainer.close()
    best = max(updates, key=lambda metrics: metrics.get("update/mfu", 0.0))
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else float("nan")
    return {
        "case": case.label,
        "parameters": sum(p.numel() for p in model.parameters()),
        "mfu": round(best.get("update/mfu", float("nan")), 3),
        "tokens_per_s": round(best["update/tokens_per_s"]),
        "recomputed_share": round(best["update/recomputed_share"], 3),
        "peak_gib": round(peak, 1),
        "bar": BARS.get(case.length),
    }


def run(device: torch.device, *, quick: bool) -> list[dict[str, Any]]:
    """Measure every case, print each row; the row of a failed case has the error instead of numbers."""
    tiny = device.type != "cuda"
    rows: list[dict[str, Any]] = []
    for case in cases(quick=quick, tiny=tiny):
        try:
            rows.append(
                measure(case, device, trajectories=2 if tiny or quick else 4, repeats=1 if quick else 2)
            )
        except Exception as error:  # continue with the other cases
            rows.append({"case": case.label, "error": f"{type(error).__name__}: {error}"[:500]})
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="8K only, one repetition")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny shapes")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("skipped: torch sees no CUDA device")
        return
    device = torch.device(options.device)
    rows = run(device, quick=options.quick)
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        store("train_mfu", {"device": name, "torch": torch.__version__, "rows": rows}, quick=options.quick)


if __name__ == "__main__":
    main()
