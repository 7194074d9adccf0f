"""Optimizers of an update, and their state by parameter name. To add one: a branch in ``make_optimizer``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from engine.config.learning.trainer import TrainerConfig


def make_optimizer(parameters: Sequence[Tensor], config: TrainerConfig) -> Optimizer:
    """Return the configured optimizer of these parameters."""
    settings: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": (config.beta1, config.beta2),
        "eps": config.epsilon,
        "weight_decay": config.weight_decay,
    }
    if config.optimizer == "adamw_8bit":
        from torchao.optim import AdamW8bit  # type: ignore[import-untyped]  # seconds to import

        return AdamW8bit(parameters, **settings)  # type: ignore[no-any-return]
    return torch.optim.AdamW(parameters, **settings)


def step(optimizer: Optimizer) -> None:
    """Make an optimizer step, on a CPU without compilation."""
    first = optimizer.param_groups[0]["params"][0]
    if first.device.type == "cpu":
        with torch.compiler.set_stance("force_eager"):
            optimizer.step()
    else:
        optimizer.step()


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def moments(optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Return the optimizer's state of each parameter that has any, without a copy."""
    return {name: optimizer.state[p] for name, p in parameters.items() if p in optimizer.state}


def initial_moments(
    optimizer: Optimizer, parameters: Mapping[str, Tensor], names: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Create state of the named parameters, to be filled from a checkpoint; clear all other state."""
    optimizer.state.clear()
    rates = [group["lr"] for group in optimizer.param_groups]
    zero_rates = [torch.zeros_like(rate) if isinstance(rate, Tensor) else 0.0 for rate in rates]
    for group, rate in zip(optimizer.param_groups, zero_rates, strict=True):
        group["lr"] = rate
    for name in names:
        parameters[name].grad = torch.zeros_like(parameters[name])
    step(optimizer)  # at rate 0 it changes no weight
    optimizer.zero_grad()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    return moments(optimizer, parameters)
