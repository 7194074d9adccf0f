"""Memory of an update on each rank, by arithmetic, before anything is loaded.

A model of P parameters, P_t of them trained, over R ranks takes in an update

    weights       4 P_t / R, and the frozen ones in their own type / R
    gradients     4 P_t / R
    optimizer     8 P_t / R with AdamW, 2 P_t / R with 8-bit moments
    copies        in bfloat16: two gathered layers and the weights outside of layers; on one rank, every
                  float32 weight, which autocast rounds
    activations   tokens of a row / context ranks × bytes per token (``activations``)
    passes        the larger of one layer's working memory and, before it, the tiles of logits with the
                  float32 gradients of the head and of the hidden states

Gathered gradients of a layer live while its activations do and count as copies. Importing this does not load
torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from engine.config.learning.trainer import TrainerConfig
from engine.models.logit_tiles import KEPT, TILES, TILES_AT_ONCE
from engine.models.sizes import ModelSizes

Device = Literal["cpu", "cuda"]
_Entry = tuple[str, float, str]
"""Name, bytes and remedy of a part."""

GIB = 2**30
_RUNTIME = {"cpu": 0, "cuda": 2**30}
"""Bytes of the CUDA context, workspaces of its libraries, and gaps between tensors; an estimate."""
_MOMENTS = {"adamw": 8.0, "adamw_8bit": 2.0 + 2 * 4 / 256}
"""Bytes of the optimizer's state per parameter; in 8 bits, with a scale for each 256 values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Bytes per token of a row."""

    inputs: int
    """Inputs of all layers, which activation checkpointing keeps."""
    kept: int
    """Everything that all layers keep for the backward pass."""
    layer: int
    """Maximum during the passes of one layer, forwards and backwards, beyond its input."""
    outside: int
    """Everything that the embedding and the last norm keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the memory of one rank."""

    name: str
    bytes: int
    remedy: str
    """Settings that reduce it."""


def largest_parts(parts: Iterable[Part]) -> str:
    """Return the three largest parts and their remedies as text."""
    largest = sorted(parts, key=lambda part: -part.bytes)[:3]
    return "; ".join(f"{p.name} {p.bytes / GIB:.1f} GiB ({p.remedy})" for p in largest if p.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Memory of one rank during an update."""

    parts: tuple[Part, ...]
    ranks: int

    @property
    def total(self) -> int:
        """Return the maximum, bytes: all parts exist at once when the backward pass begins."""
        return sum(part.bytes for part in self.parts)

    def problem(self, limit: int) -> str | None:
        """Return why the plan does not fit ``limit`` bytes and what to change; None if it fits."""
        if self.total <= limit:
            return None
        return (
            f"an update needs {self.total / GIB:.1f} GiB on each of {self.ranks} ranks and the device has "
            f"{limit / GIB:.1f} GiB. The largest parts: {largest_parts(self.parts)}"
        )

    def table(self) -> str:
        """Return the parts as lines of text."""
        rows = [*((part.name, part.bytes) for part in self.parts), ("total", self.total)]
        return "\n".join(f"{name:<28}{size / GIB:>9.2f} GiB" for name, size in rows)


def plan_memory(
    sizes: ModelSizes,
    activations: Activations,
    config: TrainerConfig,
    *,
    longest: int,
    device: Device = "cuda",
    reference: bool = False,
) -> MemoryPlan:
    """Return the memory that each rank needs.

    Args:
        sizes: of the model with frozen weights and adapters as in training.
        activations: of the same model.
        config: settings of the update.
        longest: maximum tokens of a sample; a row has room for one.
        device: of the update.
        reference: a second model scores the KL term; never under adapters, whose base is the reference.
    """
    ranks = config.data_parallel * config.context_parallel
    tokens = -(-max(config.tokens_per_microbatch, longest) // config.context_parallel)
    parts = (
        *_weights(sizes, config, ranks, reference=reference),
        *_passes(sizes, activations, config, tokens, device),
        ("CUDA runtime", _RUNTIME[device], "a larger device"),
    )
    return MemoryPlan(
        ranks=ranks,
        parts=tuple(Part(name=name, bytes=round(size), remedy=remedy) for name, size, remedy in parts),
    )


def _weights(sizes: ModelSizes, config: TrainerConfig, ranks: int, *, reference: bool) -> Iterator[_Entry]:
    """Yield the parts that are divided among ranks."""
    frozen = sizes.frozen_bytes + (4 * sizes.parameters if reference and not config.lora_rank else 0)
    more_ranks = "more ranks (trainer.data_parallel)"
    lora_or_ranks = f"trainer.lora_rank, or {more_ranks}"
    yield "frozen weights", frozen / ranks, more_ranks
    yield "trained weights", 4 * sizes.trained / ranks, lora_or_ranks
    yield "gradients", 4 * sizes.trained / ranks, lora_or_ranks
    moments = _MOMENTS[config.optimizer] * sizes.trained / ranks
    yield "optimizer", moments, f"trainer.optimizer='adamw_8bit', {lora_or_ranks}"
    kept = ranks > 1 or not config.activation_checkpointing
    yield "copies for products", _copies(sizes, config, ranks) if kept else 0, "trainer.lora_rank"


def _passes(
    sizes: ModelSizes, activations: Activations, config: TrainerConfig, tokens: int, device: Device
) -> Iterator[_Entry]:
    """Yield the parts that grow with the tokens of a row."""
    in_layers = activations.inputs if config.activation_checkpointing else activations.kept
    per_layer = activations.layer if config.activation_checkpointing else activations.layer // 2
    yield (
        "activations of all layers",
        tokens * (in_layers + activations.outside),
        "trainer.activation_checkpointing, a smaller trainer.tokens_per_microbatch and agent.max_context, or "
        "trainer.context_parallel",
    )
    height, width = TILES[device]
    logits = 4 * (min(KEPT, tokens * sizes.head // sizes.hidden) + TILES_AT_ONCE * height * width)
    gradients = 8 * tokens * sizes.hidden + (4 * sizes.head if sizes.head_trained else 0)
    alone = config.data_parallel * config.context_parallel == 1
    rounded_weights = _copies(sizes, config, 1) if alone and config.activation_checkpointing else 0
    yield (
        "one layer's passes or logits",
        max(tokens * per_layer + rounded_weights / len(sizes.blocks), logits + gradients, rounded_weights),
        "a smaller trainer.tokens_per_microbatch, or trainer.context_parallel",
    )


def _copies(sizes: ModelSizes, config: TrainerConfig, ranks: int) -> float:
    """Return the bytes of the weights in the type of the products, and of their gathered gradients.

    On one rank they exist until the end of a forward pass, without checkpointing of the backward pass.
    """
    compute = 2 if config.precision == "bf16" else 4
    if ranks == 1:
        wide = sizes.frozen_bytes // 4 if sizes.frozen_bytes > 2 * (sizes.parameters - sizes.trained) else 0
        return compute * (sizes.trained + wide) if compute == 2 else 0
    layer = max(block.parameters for block in sizes.blocks)
    gathered = compute * (sizes.outside + 2 * layer)
    trained = max(block.trained for block in sizes.blocks)
    outside = sizes.trained - sum(block.trained for block in sizes.blocks)
    return gathered + (compute + 4) * max(trained, outside)
