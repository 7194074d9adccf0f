"""Causal language models of ``transformers`` with our attention over packed rows.

The layers, norms, position encodings and routers are transformers' own. Dropout and router noise stay
off, because sampler and trainer must compute the same policy. A router's load-balancing loss is not part of
any objective.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel

from engine.errors import CheckpointError, describe_error
from engine.models.attention import Segments
from engine.models.base import Head, LanguageModel
from engine.models.published.architectures import check_architecture
from engine.models.published.networks import build_causal, layers_of, trunk_of
from engine.models.published.shapes import max_context
from engine.models.weights.checkpoint_folder import check_quantisation, read_settings


class PretrainedModel(LanguageModel):
    """A causal language model of ``transformers``.

    Args:
        causal: of ``build_causal``, or of ``AutoModelForCausalLM`` with ``attn_implementation=PACKED``.
    """

    def __init__(self, causal: PreTrainedModel) -> None:
        super().__init__()
        for name, child in causal.named_children():
            self.add_module(name, child)  # parameters keep their published names
        self.config: PreTrainedConfig = causal.config
        self.family = causal.config.model_type
        longest = max_context(causal.config.to_dict())
        if longest is None:
            raise CheckpointError(f"a config.json of '{self.family}' has no max_position_embeddings")
        self.max_context = longest
        names = {module: name for name, module in causal.named_modules()}
        self._trunk_name = names[trunk_of(causal)]
        self._blocks_name = names[layers_of(trunk_of(causal))]
        self._head_name = names[causal.get_output_embeddings()]  # type: ignore[no-untyped-call]
        self.vocab_size = len(self.head.weight)
        self.eval()

    @property
    def _trunk(self) -> Any:
        return self.get_submodule(self._trunk_name)

    @property
    def head(self) -> Head:
        """Return the output layer."""
        weight = self.get_submodule(self._head_name).weight
        assert isinstance(weight, Tensor)
        softcap: float | None = getattr(self.config, "final_logit_softcapping", None)
        return Head(weight=weight, scale=_logit_scale(self.config), softcap=softcap)

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """Return the layers in order."""
        layers = self.get_submodule(self._blocks_name)
        assert isinstance(layers, nn.ModuleList)
        return list(layers)

    def packed_hidden(self, ids: Tensor, segments: Segments) -> Tensor:
        """Return final hidden states [T, H] of one packed row of ids [T]."""
        x = self._trunk.get_input_embeddings()(ids.unsqueeze(0))
        if torch.is_autocast_enabled(x.device.type):
            x = x.float()  # the residual stream is never rounded
        out = self._trunk(
            inputs_embeds=x,
            position_ids=segments.positions.unsqueeze(0),
            use_cache=False,
            segments=segments,
        )
        hidden: Tensor = out.last_hidden_state
        return hidden.squeeze(0)

    def set_activation_checkpointing(self, on: bool) -> None:
        """Keep only each layer's input for the backward pass, or everything."""
        for block in self.blocks:
            if on:
                block.forward = types.MethodType(_recomputed, block)
            else:
                block.__dict__.pop("forward", None)

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        """Stay in evaluation mode: dropout and router noise are not used."""
        return super().train(False)


def build_pretrained(folder: Path, *, dtype: torch.dtype, random: bool) -> PretrainedModel:
    """Build the ``transformers`` model that a folder's ``config.json`` describes.

    Args:
        folder: with ``config.json``.
        dtype: of the weights.
        random: give it random weights; else its parameters stay on the meta device.

    Raises:
        CheckpointError: ``config.json`` is unreadable, or of an architecture that cannot be trained here.
    """
    check_quantisation(folder)
    config = read_settings(folder)
    try:
        check_architecture(config)
        return PretrainedModel(build_causal(config, dtype=dtype, meta=not random))
    except CheckpointError:
        raise
    except Exception as error:  # impossible settings make transformers raise anything
        raise CheckpointError(f"cannot read the model in {folder}: {describe_error(error)}") from error


def _recomputed(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    forward = types.MethodType(type(block).forward, block)
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def _logit_scale(config: PreTrainedConfig) -> float:
    """Return the factor of the logits: Granite divides, Cohere multiplies."""
    return float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", 1.0))
