"""Sizes of a model, counted on its modules: parameters, and products per token.

Works for any architecture and on the meta device, so that a model can be counted before it is loaded. Every
weight of two or more dimensions inside a layer counts as one matrix product per token; experts count by the
share that the router chooses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from engine.models.base import LanguageModel


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    """Sizes of one layer."""

    parameters: int
    trained: int
    """Parameters that receive gradients."""
    active: int
    """Parameters used for one token."""
    products: int
    """Weights that one token is multiplied with."""
    trained_products: int
    """Those of ``products`` that receive gradients."""
    attention: int
    """Multiplications for one pair of query and key, over all heads: of scores and of values."""
    window: int | None
    """Maximum number of keys a query attends to, itself included; None: all before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """Sizes of a model; tied weights count once."""

    parameters: int
    trained: int
    """Parameters that receive gradients."""
    active: int
    """Parameters used for one token: of experts, those that the router chooses."""
    frozen_bytes: int
    """Memory of the parameters without gradients, in their own types."""
    hidden: int
    """Size of a hidden state."""
    head: int
    """Weights of the output layer."""
    head_trained: bool
    blocks: tuple[BlockSizes, ...]

    @property
    def outside(self) -> int:
        """Return the number of parameters outside of the layers: embeddings, output layer, last norm."""
        return self.parameters - sum(block.parameters for block in self.blocks)


def count_sizes(model: LanguageModel) -> ModelSizes:
    """Count a model's parameters as they are now: frozen ones and adapters included."""
    blocks = tuple(_block_sizes(block) for block in model.blocks)
    parameters = list(model.parameters())  # each once, however many names it has
    total = sum(p.numel() for p in parameters)
    head = model.head.weight
    return ModelSizes(
        parameters=total,
        trained=sum(p.numel() for p in parameters if p.requires_grad),
        active=total - sum(block.parameters - block.active for block in blocks),
        frozen_bytes=sum(p.numel() * p.element_size() for p in parameters if not p.requires_grad),
        hidden=head.shape[1],
        head=head.numel(),
        head_trained=head.requires_grad,
        blocks=blocks,
    )


def _block_sizes(block: nn.Module) -> BlockSizes:
    total = trained = products = trained_products = 0
    active = 0.0
    for module, share in _with_shares(block):
        for name, parameter in module.named_parameters(recurse=False):
            total += parameter.numel()
            active += parameter.numel() * share
            trained += parameter.numel() if parameter.requires_grad else 0
            if parameter.dim() > 1 and "bias" not in name:
                used = round(parameter.numel() * share)
                products += used
                trained_products += used if parameter.requires_grad else 0
    attention, window = _attention(block)
    return BlockSizes(
        parameters=total,
        trained=trained,
        active=round(active),
        products=products,
        trained_products=trained_products,
        attention=attention,
        window=window,
    )


def _with_shares(block: nn.Module) -> Iterator[tuple[nn.Module, float]]:
    """Yield every module of a layer with the share of its weights that one token uses."""
    names = dict(block.named_modules())
    for name, module in names.items():
        path = name.split(".")
        depth = next((i for i, part in enumerate(path) if part == "experts"), None)
        if depth is None:
            yield module, 1.0
            continue
        experts = names[".".join(path[: depth + 1])]
        yield module, _chosen(names[".".join(path[:depth])]) / _num_experts(experts)


def _num_experts(experts: nn.Module) -> int:
    count = getattr(experts, "num_experts", None)
    if count is not None:
        return int(count)
    fused = [p.shape[0] for p in experts.parameters(recurse=False)]
    return int(fused[0]) if fused else len(list(experts.children()))


def _chosen(moe: nn.Module) -> int:
    """Return the number of experts that the router of a mixture-of-experts module chooses for a token."""
    for module in moe.modules():
        for name in ("top_k", "num_experts_per_tok"):
            chosen = getattr(module, name, None) or getattr(getattr(module, "config", None), name, None)
            if isinstance(chosen, int):
                return chosen
    raise ValueError(f"{type(moe).__name__} has experts, but neither top_k nor num_experts_per_tok")


def _attention(block: nn.Module) -> tuple[int, int | None]:
    """Return ``BlockSizes.attention`` and ``BlockSizes.window``; 0 for a layer without softmax attention."""
    for module in block.modules():
        if "Attention" not in type(module).__name__:
            continue
        config: Any = getattr(module, "config", None)
        output: Any = getattr(module, "o_proj", None)
        values = int(config.hidden_size if output is None else output.in_features)
        latent = getattr(module, "qk_head_dim", None)  # multi-head latent attention: keys wider than values
        scores = values if latent is None else int(latent) * int(config.num_attention_heads)
        window = getattr(module, "sliding_window", getattr(config, "sliding_window", None))
        return scores + values, window
    return 0, None
