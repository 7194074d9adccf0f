"""FLOPs of a model and peak FLOP/s of a device: together the model FLOPs utilisation (MFU).

Counted as in PaLM's appendix B (arXiv:2204.02311): 6 FLOPs per parameter and token for a forward and a
backward pass, and the attention products, here with only the causal half. Work done twice to save memory
does not count. To add a GPU: a line in ``_PEAK``.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable

import torch

from engine.models.builtin.transformer import TransformerConfig

_PEAK: dict[str, tuple[float, float]] = {
    "B200": (2250e12, 80e12),
    "H200": (989e12, 67e12),
    "H100": (989e12, 67e12),
    "A100": (312e12, 19.5e12),
    "L40S": (362e12, 91.6e12),
    "L4": (121e12, 30.3e12),
    "RTX 4090": (165e12, 82.6e12),
}
"""Dense peak FLOP/s by part of the device's name: bfloat16 and float32, from the vendors' data sheets."""


def training_flops(config: TransformerConfig, lengths: Iterable[int], targets: int) -> float:
    """Return the FLOPs of a forward and a backward pass over sequences of these lengths.

    Args:
        config: shape of the model.
        lengths: tokens of each sequence.
        targets: number of positions at which logits are computed.
    """
    lengths = list(lengths)
    heads = config.num_attention_heads * config.head_dim
    kv_heads = config.num_key_value_heads * config.head_dim
    hidden = config.hidden_size
    layer = hidden * (2 * heads + 2 * kv_heads) + 3 * hidden * config.intermediate_size
    attention = 6.0 * heads * sum(length**2 for length in lengths)
    layers = config.num_hidden_layers * (6.0 * layer * sum(lengths) + attention)
    return layers + 6.0 * hidden * config.vocab_size * targets


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the device's peak FLOP/s in matrix products; None for a GPU that is not in the table."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        found = [rates for part, rates in _PEAK.items() if part in name]
        return found[0][dtype == torch.float32] if found else None
    return _measured(dtype, torch.get_num_threads())


@functools.cache
def _measured(dtype: torch.dtype, _threads: int) -> float:
    """Return the best measured FLOP/s of a few products on this CPU, cached per number of threads."""
    size = 768
    a = torch.ones(size, size, dtype=dtype)  # the process's random stream belongs to the run
    best = float("inf")
    for _ in range(6):
        started = time.perf_counter()
        torch.mm(a, a)
        best = min(best, time.perf_counter() - started)
    return 2.0 * size**3 / best
