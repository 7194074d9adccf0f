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
    """Measure whether this processor multiplies bfloat16 faster than float32.

    Takes a hundredth of a second, once per process. Native instructions (AVX512-BF16, AMX) are 1.5 to 4 times
    as fast as float32, emulation is three times slower.
    """
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
    rounded = copy.deepcopy(model)
    for module in rounded.modules():
        if not isinstance(module, nn.Embedding):
            for name, weight in list(module.named_parameters(recurse=False)):
                if weight.ndim > 1:
                    setattr(module, name, nn.Parameter(weight.detach().to(low), requires_grad=False))
    return rounded
