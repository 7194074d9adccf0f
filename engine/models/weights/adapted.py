"""Weights of a policy plus its adapters, added row by row while they are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import CheckpointError
from engine.models.weights.policy_files import ADAPTERS
from engine.models.weights.source import WeightSource, read_tensor
from engine.reading import read_json

BASE = "base"
"""Name of the folder with the policy under adapters, in their run's folder or their own."""


class AdaptedWeights:
    """``WeightSource`` of base + scale · B · A, computed in float32 and rounded once, to the base's type.

    Args:
        base: weights of the policy under the adapters.
        adapters: ``NAME.lora_A.weight`` [r, in] and ``NAME.lora_B.weight`` [out, r] of weights ``NAME``.
        scale: factor of the adapters.

    Raises:
        CheckpointError: the base lacks the weight of an adapter, or has it in another shape.
    """

    def __init__(self, base: WeightSource, adapters: WeightSource, *, scale: float) -> None:
        self.base, self._adapters, self._scale = base, adapters, scale
        self.tensors = base.tensors
        for name, info in adapters.tensors.items():
            owner, _, part = name.rpartition(".lora_")
            weight, side = base.tensors.get(f"{owner}.weight"), 1 if part == "A.weight" else 0
            if weight is None or weight.shape[side] != info.shape[side]:
                stored = "no such weight" if weight is None else f"one of shape {list(weight.shape)}"
                raise CheckpointError(
                    f"{adapters.where(name)} has {name} of shape {list(info.shape)} for {owner}.weight, but "
                    f"the policy under it has {stored}: it needs the policy that it was trained over"
                )

    def where(self, name: str) -> str:
        """Return the base's file, for messages."""
        return self.base.where(name)

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Tensor]:
        """Yield the rows in the base's pieces."""
        owner = name.removesuffix(".weight")
        if f"{owner}.lora_A.weight" not in self._adapters.tensors:
            yield from self.base.rows(name, start, stop)
            return
        low, high = (read_tensor(self._adapters, f"{owner}.lora_{x}.weight", torch.float32) for x in "AB")
        for piece in self.base.rows(name, start, stop):
            delta = self._scale * (high[start : start + len(piece)] @ low)
            yield (piece.float() + delta).to(piece.dtype)
            start += len(piece)


def base_folder(folder: Path) -> tuple[Path, float]:
    """Return the folder of the policy under adapters, and the adapters' scale.

    The policy is in the folder itself or in its run's. ``base_model_name_or_path`` is ignored: otherwise any
    policy folder could open any other one of the server.

    Args:
        folder: a checkpoint of a run, ``RUN/checkpoints/NUMBER``, or a copy with its base in it.

    Raises:
        CheckpointError: the policy is not there, or the adapters' settings are damaged.
    """
    try:
        settings = read_json(folder / ADAPTERS)
        scale = float(settings["lora_alpha"] / settings["r"])
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise CheckpointError(f"cannot read {folder / ADAPTERS}: {error!r}") from error
    inside = folder.resolve()
    allowed = [inside / BASE, *([inside.parents[1] / BASE] if inside.parent.name == "checkpoints" else [])]
    for base in allowed:
        if (base / "config.json").is_file() and base.resolve() == base:
            return base, scale
    raise CheckpointError(
        f"the policy under the adapters in {folder} is not in {' or '.join(map(str, allowed))}: put it there "
        "(a folder, no link), or use what `python -m engine.trainer export RUN OUT` writes"
    )
