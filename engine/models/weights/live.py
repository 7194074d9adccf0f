"""Weights of a model in training under the names and in the layout of published models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from engine.models.base import LanguageModel
from engine.models.builtin.transformer import Transformer
from engine.models.weights.model_weights import stored_tensors
from engine.models.weights.source import TensorInfo

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LiveWeights:
    """A model's current parameters and persistent buffers, gathered from all ranks one at a time.

    Args:
        model: whole or sharded; its own weights only, without adapters.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model

    def infos(self, dtype: torch.dtype) -> Mapping[str, TensorInfo]:
        """Return descriptions of the tensors that ``tensors`` yields, in its order."""
        own = {name: TensorInfo.of(tensor) for name, tensor in stored_tensors(self._model).items()}
        if self._network is None:
            return {name: TensorInfo(info.shape, dtype) for name, info in own.items()}
        from engine.models.weights.conversion import published_tensors

        return published_tensors(own, self._network, dtype)

    @torch.no_grad()
    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Yield published names and whole tensors on the model's device; a collective among ranks.

        Args:
            dtype: of parameters; buffers of published models keep their own.
        """
        own = stored_tensors(self._model)
        if self._network is None:
            for name, tensor in own.items():
                yield name, whole_tensor(tensor, dtype)
            return
        from engine.models.weights.conversion import convert_published

        infos = {name: TensorInfo.of(tensor) for name, tensor in own.items()}
        yield from convert_published(
            infos, self._network, dtype, lambda name, dtype: whole_tensor(own[name], dtype)
        )

    @cached_property
    def _network(self) -> PreTrainedModel | None:
        if isinstance(self._model, Transformer):
            return None
        from engine.models.weights.conversion import meta_network

        return meta_network(cast(Any, self._model.config))


def whole_tensor(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a whole tensor in a type; shards are cast before they are gathered."""
    converted = tensor.detach().to(dtype)
    return converted.full_tensor() if isinstance(converted, DTensor) else converted
