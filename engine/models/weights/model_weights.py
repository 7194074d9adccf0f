"""Weights of a checkpoint by the names of a model's parameters, checked before anything is read.

A recipe makes one or more parameters from stored tensors; most use one tensor unchanged.
``conversion`` has the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import torch
from torch import Tensor, nn

from engine.errors import CheckpointError
from engine.models.weights.source import TensorInfo, WeightSource

_SHOWN = 5
"""Maximum number of names listed in an error."""
_COMPARED_ROWS = 64


class Recipe(Protocol):
    """Recipe that makes parameters from stored tensors."""

    @property
    def inputs(self) -> list[str]:
        """Return the names of the stored tensors."""

    @property
    def packed(self) -> bool:
        """Return whether the inputs are quantised weights, unpacked by the recipe."""

    def describe(self, stored: WeightSource) -> dict[str, TensorInfo]:
        """Return descriptions of the resulting parameters; empty if the tensors do not fit together."""

    def rows(self, stored: WeightSource, name: str, start: int, stop: int | None) -> Iterator[Tensor]:
        """Yield rows of a parameter in consecutive pieces."""


@dataclass(frozen=True, slots=True)
class AsStored:
    """Recipe of a parameter that is stored unchanged, maybe under another name."""

    name: str
    stored_as: str
    packed: bool = False

    @property
    def inputs(self) -> list[str]:
        """Return the name of the stored tensor."""
        return [self.stored_as]

    def describe(self, stored: WeightSource) -> dict[str, TensorInfo]:
        """Return the description of the parameter."""
        return {self.name: stored.tensors[self.stored_as]}

    def rows(self, stored: WeightSource, name: str, start: int, stop: int | None) -> Iterator[Tensor]:  # noqa: ARG002
        """Yield rows of the stored tensor."""
        return stored.rows(self.stored_as, start, stop)


@dataclass(frozen=True, slots=True)
class Plan:
    """Recipes for all parameters of a model from one checkpoint."""

    recipes: list[Recipe]
    unexpected: list[str]
    """Stored tensors that belong to no parameter."""
    published: Callable[[str], Mapping[str, TensorInfo]]
    """Published tensors of a parameter, for messages."""


def plan_as_stored(
    stored: WeightSource, expected: Mapping[str, TensorInfo], ties: Sequence[Sequence[str]]
) -> Plan:
    """Return the plan for a model whose parameters are stored under their own names."""
    names = set(expected).union(*ties)
    return Plan(
        recipes=[AsStored(name, name) for name in stored.tensors if name in names],
        unexpected=[name for name in stored.tensors if name not in names],
        published=lambda name: {name: expected[name]},
    )


class ModelWeights:
    """``WeightSource`` of a model's parameters and buffers from a checkpoint.

    Args:
        stored: the checkpoint.
        expected: the model's parameters and persistent buffers.
        plan: recipes for them.
        ties: groups of names of one parameter; at least one name of a group must be stored.

    Raises:
        CheckpointError: tensors are missing, unexpected, quantised or of another shape.
    """

    def __init__(
        self,
        stored: WeightSource,
        expected: Mapping[str, TensorInfo],
        plan: Plan,
        ties: Sequence[Sequence[str]],
    ) -> None:
        self._stored, self._expected, self._plan = stored, expected, plan
        self._recipes: dict[str, tuple[Recipe, str]] = {}
        """Parameter → its recipe, and its name in the recipe."""
        self.tensors: dict[str, TensorInfo] = {}
        for recipe in plan.recipes:
            for name, info in recipe.describe(stored).items():
                self._recipes[name], self.tensors[name] = (recipe, name), info
        for names in ties:
            present = [name for name in names if name in self._recipes]
            for name in set(names).difference(present) if present else ():
                self._recipes[name], self.tensors[name] = self._recipes[present[0]], self.tensors[present[0]]
            for other in present[1:]:
                self._check_tie(present[0], other)
        self._check()

    def where(self, name: str) -> str:
        """Return the file of (the first part of) a parameter, for messages."""
        return self._stored.where(self._recipes[name][0].inputs[0])

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Tensor]:
        """Yield rows ``start`` … ``stop`` in consecutive pieces; a scalar is one piece."""
        recipe, made_as = self._recipes[name]
        return recipe.rows(self._stored, made_as, start, stop)

    def _check(self) -> None:
        bad = [
            name
            for name, info in self._expected.items()
            if name not in self.tensors or self.tensors[name].shape != info.shape
        ]
        if bad:
            self._check_missing(bad)
            self._refuse_shape(bad[0])
        for name in self._expected:
            self._check_types(name)
        if unexpected := self._plan.unexpected:
            raise CheckpointError(
                f"the model has no place for {len(unexpected)} stored tensors: {_listed(unexpected)} "
                f"({self._stored.where(unexpected[0])}); config.json must be the one of these weights"
            )

    def _check_tie(self, name: str, other: str) -> None:
        """Compare some rows of two copies of one parameter."""
        rows = self.tensors[name].shape[0]
        same = self.tensors[other].shape == self.tensors[name].shape and all(
            torch.equal(*(next(self.rows(copy, row, row + 1)).float() for copy in (name, other)))
            for row in range(0, rows, max(1, rows // _COMPARED_ROWS))
        )
        if not same:
            raise CheckpointError(
                f"config.json says that {name} and {other} are one parameter, but {self.where(other)} has "
                "two different ones: set tie_word_embeddings to false"
            )

    def _check_missing(self, bad: list[str]) -> None:
        missing: list[str] = []
        for name in bad:
            parts = self._plan.published(name)
            absent = [part for part in parts if part not in self._stored.tensors]
            if name not in self.tensors or len(absent) < len(parts):  # else it was stored in another form
                missing += absent
        if missing:
            raise CheckpointError(
                f"the weights lack {len(missing)} tensors of the model: {_listed(missing)}; "
                "download the folder again, or use the config.json of these weights"
            )

    def _refuse_shape(self, name: str) -> NoReturn:
        for part, info in self._plan.published(name).items():
            stored = self._stored.tensors.get(part)
            if stored is not None and stored.shape != info.shape:
                raise CheckpointError(
                    f"tensor {part} of {self._stored.where(part)} has shape {list(stored.shape)}; the model "
                    f"of config.json needs {list(info.shape)}: use the config.json of these weights"
                )
        result = f"shape {list(self.tensors[name].shape)}" if name in self.tensors else "no tensor"
        raise CheckpointError(
            f"the tensors stored for {name} give {result}; the model of config.json needs "
            f"{list(self._expected[name].shape)}: use the config.json of these weights"
        )

    def _check_types(self, name: str) -> None:
        recipe, _ = self._recipes[name]
        if recipe.packed or not self._expected[name].dtype.is_floating_point:
            return
        for part in recipe.inputs:
            dtype = self._stored.tensors[part].dtype
            if dtype.itemsize < 2 or not dtype.is_floating_point:
                raise CheckpointError(
                    f"tensor {part} of {self._stored.where(part)} has type {dtype}; weights must be float32, "
                    "bfloat16 or float16: use the unquantised variant of the model"
                )


def expected_tensors(model: nn.Module) -> dict[str, TensorInfo]:
    """Return the descriptions of a model's parameters and persistent buffers."""
    return {name: TensorInfo.of(tensor) for name, tensor in model.state_dict().items()}


def stored_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint: parameters, under one name each, and persistent buffers."""
    copies = {name for names in tied_names(model) for name in names[1:]}
    state = model.state_dict(keep_vars=True)
    return {name: tensor.detach() for name, tensor in state.items() if name not in copies}


def tied_names(model: nn.Module) -> list[list[str]]:
    """Return the groups of names that belong to one parameter."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [same for same in names.values() if len(same) > 1]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
