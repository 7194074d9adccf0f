"""Conversion between the weights of published checkpoints and of ``transformers``' models.

``transformers`` keeps the experts of a layer as one tensor; checkpoints have one tensor per expert, or four
bits per weight (gpt-oss). Its table (``transformers.conversion_mapping``) defines the conversions of every
architecture; this module applies them to some rows of one parameter at a time.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    PrefixChange,
    WeightConverter,
    WeightRenaming,
    WeightTransform,
    dot_natural_key,
    rename_source_key,
)
from transformers.integrations.mxfp4 import Mxfp4Dequantize

from engine.models.weights.model_weights import AsStored, Plan, Recipe, expected_tensors, tied_names
from engine.models.weights.source import TensorInfo, WeightSource, read_tensor

_IGNORED = (r"rotary_emb\.inv_freq", r"(^|\.)position_ids$")
"""Buffers of old checkpoints, which every model computes today."""


def meta_network(config: PreTrainedConfig) -> PreTrainedModel:
    """Return a configuration's model without storage, for its names, shapes and conversions."""
    with torch.device("meta"):
        network: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, trust_remote_code=False
        )
    return network


def plan_converted(stored: WeightSource, network: PreTrainedModel) -> Plan:
    """Return the recipes of a model's parameters from a published checkpoint.

    Args:
        stored: the checkpoint.
        network: of ``meta_network``.
    """
    expected = expected_tensors(network)
    table = get_model_conversion_mapping(network)
    renamings = [entry for entry in table if isinstance(entry, WeightRenaming)]
    converters = [*_unpackers(), *(entry for entry in table if isinstance(entry, WeightConverter))]
    by_pattern = {pattern: entry for entry in converters for pattern in entry.source_patterns}
    recipes: dict[str, Recipe] = {}
    unexpected = []
    for name in sorted(stored.tensors, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, network.base_model_prefix, expected)
        if target not in expected and name in expected:
            target, pattern = name, None
        if target not in expected:
            unexpected.append(name)
        elif pattern is None:
            recipes[target] = AsStored(target, name)
        else:
            recipe = recipes.setdefault(target, Converted(target, by_pattern[pattern], network))
            if isinstance(recipe, Converted):
                recipe.parts.setdefault(pattern, []).append(name)
    ignored = re.compile("|".join((*_IGNORED, *(network._keys_to_ignore_on_load_unexpected or ()))))
    return Plan(
        recipes=list(recipes.values()),
        unexpected=[name for name in unexpected if not ignored.search(name)],
        published=_Published(expected, network).tensors_of,
    )


@dataclass(frozen=True, slots=True)
class Converted:
    """Recipe of parameters that are converted by an entry of transformers' table."""

    target: str
    """The first parameter."""
    converter: WeightConverter
    network: PreTrainedModel
    parts: dict[str, list[str]] = field(default_factory=dict)
    """Names of the stored tensors by the pattern that they match, in their order."""

    @property
    def inputs(self) -> list[str]:
        """Return the names of the stored tensors."""
        return [name for names in self.parts.values() for name in names]

    @property
    def packed(self) -> bool:
        """Return whether the stored tensors are four-bit weights and their scales."""
        return isinstance(self.converter.operations[0], Mxfp4Dequantize)

    def describe(self, stored: WeightSource) -> dict[str, TensorInfo]:
        """Return the parameters, by converting tensors without data."""
        parts = [
            (pattern, stored.tensors[name].on_meta())
            for pattern, names in self.parts.items()
            for name in names
        ]
        try:
            converted = _convert(self.converter, self.target, parts, self.network)
        except (RuntimeError, ValueError, IndexError, KeyError, AssertionError):
            return {}
        return {name: TensorInfo.of(tensor) for name, tensor in converted.items()}

    def rows(self, stored: WeightSource, name: str, start: int, stop: int | None) -> Iterator[Tensor]:
        """Yield rows of a parameter: experts one by one, anything else whole."""
        if self.packed:
            end = stored.tensors[self.inputs[0]].shape[0] if stop is None else stop
            for number in range(start, end):
                parts = [
                    (pattern, next(stored.rows(stored_as, number, number + 1)))
                    for pattern, (stored_as,) in self.parts.items()
                ]
                yield _convert(self.converter, self.target, parts, self.network)[name]
        elif self._is_stack():
            for names in list(zip(*self.parts.values(), strict=True))[start:stop]:
                yield self._made_of(stored, [[name] for name in names])[name]
        else:
            converted = self._made_of(stored, self.parts.values())[name]
            yield converted[start:stop] if converted.dim() else converted

    def _is_stack(self) -> bool:
        """Return whether row n depends on the n-th tensor of each pattern alone."""
        first, *others = self.converter.operations
        return (
            isinstance(first, MergeModulelist)
            and first.dim == 0
            and all(isinstance(other, Concatenate) and other.dim > 0 for other in others)
        )

    def _made_of(self, stored: WeightSource, lists: Iterable[Sequence[str]]) -> dict[str, Tensor]:
        parts = [
            (pattern, read_tensor(stored, name))
            for pattern, names in zip(self.parts, lists, strict=True)
            for name in names
        ]
        return _convert(self.converter, self.target, parts, self.network)


def published_tensors(
    tensors: Mapping[str, TensorInfo], network: PreTrainedModel, dtype: torch.dtype
) -> dict[str, TensorInfo]:
    """Return descriptions of the tensors that ``iterate_published`` yields, in its order."""
    cast = _cast(tensors, network, dtype)
    return {
        name: info for group in _groups(cast, network) for name, info in group.describe(cast, network).items()
    }


def iterate_published(
    source: WeightSource, network: PreTrainedModel, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """Yield names and tensors of a published checkpoint from a model's weights, one parameter at a time.

    Args:
        source: the weights by the model's names; a parameter of several names is published under the first.
        network: of ``meta_network``.
        dtype: of the parameters; buffers keep their own.
    """

    def read(name: str, dtype: torch.dtype) -> Tensor:
        return read_tensor(source, name, dtype)

    yield from convert_published(source.tensors, network, dtype, read)


def convert_published(
    tensors: Mapping[str, TensorInfo],
    network: PreTrainedModel,
    dtype: torch.dtype,
    read: Callable[[str, torch.dtype], Tensor],
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of ``iterate_published`` from whole tensors, read on demand.

    Args:
        tensors: descriptions of the weights by the model's names.
        network: of ``meta_network``.
        dtype: of the parameters; buffers keep their own.
        read: returns the tensor of a name in a type, on any device.
    """
    cast = _cast(tensors, network, dtype)
    for group in _groups(cast, network):
        # A name for the tensors would keep them alive while the next ones are read.
        yield from group.convert([read(name, cast[name].dtype) for name in group.names], network).items()


def _cast(
    tensors: Mapping[str, TensorInfo], network: PreTrainedModel, dtype: torch.dtype
) -> dict[str, TensorInfo]:
    """Return the descriptions of the tensors to publish, before their conversion."""
    buffers = {name for name, _ in network.named_buffers()}
    copies = {name for names in tied_names(network) for name in names[1:]}
    return {
        name: info if name in buffers else TensorInfo(info.shape, dtype)
        for name, info in tensors.items()
        if name not in copies
    }


@dataclass(slots=True)
class _Group:
    """Parameters that are published together."""

    target: str
    converter: WeightConverter | None
    patterns: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def describe(self, tensors: Mapping[str, TensorInfo], network: PreTrainedModel) -> dict[str, TensorInfo]:
        converted = self.convert([tensors[name].on_meta() for name in self.names], network)
        return {name: TensorInfo.of(tensor) for name, tensor in converted.items()}

    def convert(self, tensors: list[Tensor], network: PreTrainedModel) -> dict[str, Tensor]:
        if self.converter is None:
            return {self.target: tensors[0]}
        parts = zip(self.patterns, tensors, strict=True)
        return _convert(self.converter, self.target, parts, network)


class _Published:
    """Published tensors of each parameter of a model, computed on first use."""

    def __init__(self, expected: Mapping[str, TensorInfo], network: PreTrainedModel) -> None:
        self._expected, self._network = expected, network

    @cached_property
    def _group_of(self) -> dict[str, _Group]:
        return {name: group for group in _groups(self._expected, self._network) for name in group.names}

    def tensors_of(self, name: str) -> Mapping[str, TensorInfo]:
        return self._group_of[name].describe(self._expected, self._network)


def _groups(names: Iterable[str], network: PreTrainedModel) -> list[_Group]:
    """Group parameters by published tensor: the table in reverse, as in ``revert_weight_conversion``."""
    table: list[WeightTransform] = [
        entry.reverse_transform()
        for entry in reversed(get_model_conversion_mapping(network, add_legacy=False))
        if not isinstance(entry, PrefixChange)  # unknown whether the checkpoint had the prefix
    ]
    renamings = [entry for entry in table if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in table if isinstance(entry, WeightConverter)]
    by_pattern = {pattern: entry for entry in converters for pattern in entry.source_patterns}
    groups: dict[str, _Group] = {}
    for name in sorted(names, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, reverse=True)
        group = groups.setdefault(target, _Group(target, by_pattern[pattern] if pattern else None))
        group.patterns.append(pattern or name)
        group.names.append(name)
    return list(groups.values())


def _convert(
    entry: WeightConverter, target: str, parts: Iterable[tuple[str, Tensor]], network: PreTrainedModel
) -> dict[str, Tensor]:
    """Apply an entry of the table to tensors, given with the patterns that their names match."""
    converter = copy.deepcopy(entry)
    for pattern, tensor in parts:
        converter.add_tensor(target, target, pattern, tensor)  # type: ignore[arg-type]
    converted = converter.convert(target, model=network, config=network.config)
    tensors = {name: value[0] if isinstance(value, list) else value for name, value in converted.items()}
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _unpackers() -> list[WeightConverter]:
    """Return the converters of MXFP4's blocks of four-bit weights with a common scale (gpt-oss)."""
    return [
        WeightConverter(
            source_patterns=[f"{name}_blocks", f"{name}_scales"],
            target_patterns=f"{name}$",
            operations=[Mxfp4Dequantize(None)],  # type: ignore[no-untyped-call]
        )
        for name in ("gate_up_proj", "down_proj")
    ]
