"""Interface of a language model of any architecture to trainer and sampler.

To add a family: a row in ``engine.models.families``; another implementation: a subclass of
``LanguageModel``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.models.attention import Segments


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The output layer: logits = softcap(scale · hidden @ weight.T)."""

    weight: Tensor
    """[V, H]."""
    scale: float = 1.0
    softcap: float | None = None
    """c: logits become c · tanh(logits / c); None: no cap."""


def logits_of(hidden: Tensor, head: Head) -> Tensor:
    """Return the logits of hidden states, [..., H] → [..., V]."""
    return scaled_logits(functional.linear(hidden, head.weight), head)


def scaled_logits(products: Tensor, head: Head) -> Tensor:
    """Return the logits from the products of hidden states and the output layer's weights."""
    logits = products * head.scale
    return logits if head.softcap is None else head.softcap * torch.tanh(logits / head.softcap)


class LanguageModel(nn.Module, ABC):
    """A causal language model that reads packed rows; parameters have the names of published checkpoints."""

    family: str
    """``model_type`` of its ``config.json``, e.g. ``qwen3``."""
    vocab_size: int
    """Rows of the output layer; the tokenizer may use fewer."""
    max_context: int
    """Maximum sequence length, tokens."""

    @property
    @abstractmethod
    def head(self) -> Head:
        """Return the output layer."""

    @property
    @abstractmethod
    def blocks(self) -> Sequence[nn.Module]:
        """Return the layers in order: the units of sharding and of activation checkpointing."""

    @abstractmethod
    def packed_hidden(self, ids: Tensor, segments: Segments) -> Tensor:
        """Return final hidden states [T, H] of one packed row of ids [T]."""

    @abstractmethod
    def set_activation_checkpointing(self, on: bool) -> None:
        """Keep only each layer's input for the backward pass, or everything."""
