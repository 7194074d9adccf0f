"""Types of a policy's weights and matrix products, in training and sampling."""

from __future__ import annotations

import copy
import functools
import time
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from engine.config.learning.trainer import TrainerConfig
from engine.models.base import LanguageModel

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
_ROWS, _SIZE, _TRIES = 16, 1024, 5
"""Rows of the measured product, sides of its weight, and measurements, of which the fastest counts."""
_GAIN = 1.2
"""Factor by which bfloat16 must be faster."""


def weight_type(config: TrainerConfig) -> torch.dtype:
    """Return the type of a policy's weights: frozen under adapters, they gain nothing from float32."""
    return torch.bfloat16 if config.lora_rank and config.precision == "bf16" else torch.float32


def product_type(precision: Literal["f32", "bf16"]) -> torch.dtype | None:
    """Return the half precision of matrix products; None where they have the weights' own."""
    return None if precision == "f32" else DTYPES[precision]


def sampling_type(precision: Literal["auto", "f32", "bf16"]) -> torch.dtype:
    """Return the type of a published model's weights for sampling or scoring without a trainer."""
    if precision != "auto":
        return DTYPES[precision]
    return torch.bfloat16 if torch.cuda.is_available() or is_bfloat16_fast() else torch.float32


@functools.cache
def is_bfloat16_fast() -> bool:
    """Return whether this processor multiplies bfloat16 faster than float32.

    Native instructions (AVX512-BF16, AMX) are 1.5 to 4 times as fast as float32, emulation is three times
    slower. Where torch names neither, a product is measured, in a hundredth of a second.
    """
    if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():
        return True
    return _seconds(torch.float32) > _GAIN * _seconds(torch.bfloat16)


def _seconds(dtype: torch.dtype) -> float:
    """Return the processor time of this thread for a product."""
    x, weight = torch.ones(_ROWS, _SIZE, dtype=dtype), torch.ones(_SIZE, _SIZE, dtype=dtype)
    functional.linear(x, weight)

    def once() -> float:
        began = time.thread_time()
        functional.linear(x, weight)
        return time.thread_time() - began

    return min(once() for _ in range(_TRIES))


def rounded_copy(model: LanguageModel, low: torch.dtype) -> LanguageModel:
    """Return a copy whose matrices are rounded as autocast rounds them at every use.

    Vectors and embeddings keep their type; an output layer tied to them becomes a parameter of its own.
    """
    kept = {id(weight) for m in model.modules() if isinstance(m, nn.Embedding) for weight in m.parameters()}
    rounded = {
        id(weight): nn.Parameter(weight.detach().to(low), requires_grad=False)
        for weight in model.parameters()
        if weight.ndim > 1
    }
    # Matrices are not copied before they are rounded; tied ones become parameters of their own.
    sampled = copy.deepcopy(model, {name: weight for name, weight in rounded.items() if name not in kept})
    for mine, theirs in zip(model.modules(), sampled.modules(), strict=True):
        if not isinstance(mine, nn.Embedding):
            for name, weight in mine.named_parameters(recurse=False):
                if id(weight) in rounded:
                    setattr(theirs, name, rounded[id(weight)])
    return sampled
