"""Types of a policy's weights and matrix products, by the trainer's settings."""

from __future__ import annotations

from typing import Literal

import torch

from engine.config.learning.trainer import TrainerConfig

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def weight_type(config: TrainerConfig) -> torch.dtype:
    """Return the type of a policy's weights: frozen under adapters, they gain nothing from float32."""
    return torch.bfloat16 if config.lora_rank and config.precision == "bf16" else torch.float32


def product_type(precision: Literal["f32", "bf16"]) -> torch.dtype | None:
    """Return the half precision of matrix products; None where they have the weights' own."""
    return None if precision == "f32" else DTYPES[precision]
