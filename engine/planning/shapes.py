"""Sizes of published models from their ``config.json`` alone: nothing is downloaded, and torch is not loaded.

``model_sizes`` is what ``engine.models.sizes.count_sizes`` counts on the network itself, ``activations`` what
``engine.models.memory.activations`` measures; tests compare them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.config.learning.trainer import ALL_LINEAR, TrainerConfig
from engine.errors import ConfigError, Problem
from engine.models.builtin.architectures import ARCHITECTURES, SHIPPED
from engine.models.families import family_of
from engine.models.memory.plan import Activations
from engine.models.published.shapes import SHAPES
from engine.models.sizes import BlockSizes, ModelSizes

_FAMILIES = ("llama", "qwen3", "qwen3_moe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Dimensions of a transformer of the families ``llama``, ``qwen3`` and ``qwen3_moe``."""

    family: str
    layers: int
    hidden: int
    vocabulary: int
    queries: int
    """Width of all query heads together."""
    keys: int
    """Width of all key heads together; values have the same."""
    head: int
    """Width of one head."""
    intermediate: int
    """Width of the feed-forward layer, or of one expert."""
    experts: int
    """Number of experts of a layer; 0 for a dense model."""
    chosen: int
    """Number of experts that a token uses; 1 for a dense model."""
    tied: bool
    """The output layer shares the embedding's weights."""

    @property
    def cache_values(self) -> int:
        """Return the number of values that the KV cache keeps per token."""
        return 2 * self.layers * self.keys

    @property
    def expert_parameters(self) -> int:
        """Return the number of parameters of all experts of all layers."""
        return 3 * self.layers * self.experts * self.hidden * self.intermediate

    def linear(self) -> Mapping[str, tuple[int, int]]:
        """Return the inputs and outputs of a layer's linear layers, without fused experts."""
        attention = {
            "q_proj": (self.hidden, self.queries),
            "k_proj": (self.hidden, self.keys),
            "v_proj": (self.hidden, self.keys),
            "o_proj": (self.queries, self.hidden),
        }
        if self.experts:
            return attention
        wide, narrow = (self.hidden, self.intermediate), (self.intermediate, self.hidden)
        return {**attention, "gate_proj": wide, "up_proj": wide, "down_proj": narrow}


def find_shape(name: str) -> Shape:
    """Return the shape of a model named in a recipe. Raises ConfigError with the known models."""
    settings = tiny_settings(name) or SHAPES.get(name)
    if settings is None:
        raise ConfigError(
            Problem(
                f"no shape of '{name}' is known to the planner; known: {', '.join(sorted(SHAPES))}, and the "
                "policies that ship with the engine. `python -m engine.models plan` estimates the memory of "
                "any other model",
                "policy.checkpoint",
            )
        )
    return parse_shape(settings)


def is_tiny(name: str) -> bool:
    """Return whether a model is one of the engine's own, made for CPUs."""
    return tiny_settings(name) is not None


def tiny_settings(name: str) -> Mapping[str, Any] | None:
    """Return the ``config.json`` of a shipped policy, a built-in architecture or FrozenLake's warm start."""
    scheme, _, rest = name.partition(":")
    if scheme == "builtin" and rest in {path.parent.name for path in SHIPPED.glob("*/config.json")}:
        settings: Mapping[str, Any] = json.loads((SHIPPED / rest / "config.json").read_text())
        return settings
    architecture = {"fresh": rest, "warm": "frozenlake"}.get(scheme, "")
    return ARCHITECTURES[architecture].to_json() if architecture in ARCHITECTURES else None


def parse_shape(settings: Mapping[str, Any]) -> Shape:
    """Return the shape that a ``config.json`` describes. Raises ConfigError for another family."""
    family = settings["model_type"]
    if family not in _FAMILIES:
        raise ConfigError(f"model_type is '{family}'; the planner knows {', '.join(_FAMILIES)}")
    experts = settings.get("num_experts", 0)
    return Shape(
        family=family,
        layers=settings["num_hidden_layers"],
        hidden=settings["hidden_size"],
        vocabulary=settings["vocab_size"],
        queries=settings["num_attention_heads"] * settings["head_dim"],
        keys=settings["num_key_value_heads"] * settings["head_dim"],
        head=settings["head_dim"],
        intermediate=settings["moe_intermediate_size" if experts else "intermediate_size"],
        experts=experts,
        chosen=settings["num_experts_per_tok"] if experts else 1,
        tied=settings["tie_word_embeddings"],
    )


def model_sizes(shape: Shape, config: TrainerConfig) -> ModelSizes:
    """Return the sizes of the model as it would be trained.

    Raises:
        ConfigError: adapters on layers that the model does not have.
    """
    linear = sum(inputs * outputs for inputs, outputs in shape.linear().values())
    norms = 2 * shape.hidden + (0 if shape.family == "llama" else 2 * shape.head)
    router = shape.experts * shape.hidden
    experts = shape.expert_parameters // shape.layers
    used = experts * shape.chosen // shape.experts if shape.experts else 0
    adapters = _adapter_parameters(shape, config)
    base, products = linear + norms + router + experts, linear + router + used
    lora = bool(config.lora_rank)
    block = BlockSizes(
        parameters=base + adapters,
        trained=adapters if lora else base,
        active=base - experts + used + adapters,
        products=products + adapters,
        trained_products=adapters if lora else products,
        attention=2 * shape.queries,
        window=None,
    )
    head = shape.vocabulary * shape.hidden
    outside = head * (1 if shape.tied else 2) + shape.hidden
    total = outside + shape.layers * block.parameters
    half = lora and config.precision == "bf16"
    return ModelSizes(
        parameters=total,
        trained=shape.layers * adapters if lora else total,
        active=total - shape.layers * (experts - used),
        frozen_bytes=(2 if half else 4) * (total - shape.layers * adapters) if lora else 0,
        hidden=shape.hidden,
        head=head,
        head_trained=not lora,
        blocks=(block,) * shape.layers,
    )


def _adapter_parameters(shape: Shape, config: TrainerConfig) -> int:
    """Return the parameters of a layer's adapters."""
    if not config.lora_rank:
        return 0
    linear = shape.linear()
    targets = config.lora_targets or family_of(shape.family).lora_targets
    wanted = set(linear) if ALL_LINEAR in targets else {target.rpartition(".")[2] for target in targets}
    unknown = sorted(wanted - set(linear))
    if unknown:
        raise ConfigError(
            Problem(
                f"'{', '.join(unknown)}' names no linear layer of {shape.family}; there are "
                f"{', '.join(linear)}, or '{ALL_LINEAR}'",
                "trainer.lora_targets",
            )
        )
    return config.lora_rank * sum(sum(linear[name]) for name in wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bytes:
    """Bytes that a dense layer keeps per token, for each value of a width."""

    inputs: int
    """Of its input, per hidden value."""
    outside: int
    """Outside of the layers, per hidden value; positions are added."""
    kept: tuple[int, int]
    """Until its backward pass, per hidden and per intermediate value."""
    layer: tuple[int, int]
    """At once during both passes, per hidden and per intermediate value."""
    attention: tuple[int, int]
    """In both cases, per value of queries and of keys."""
    norm: int
    """In addition where queries and keys are normalised."""


_FULL = {
    "f32": _Bytes(inputs=4, outside=12, kept=(24, 16), layer=(28, 24), attention=(12, 8), norm=8),
    "autocast": _Bytes(inputs=4, outside=12, kept=(26, 8), layer=(30, 12), attention=(6, 4), norm=6),
    "bf16": _Bytes(inputs=2, outside=10, kept=(18, 8), layer=(20, 12), attention=(6, 4), norm=6),
}
_ADAPTERS = {
    "f32": _Bytes(inputs=4, outside=8, kept=(16, 16), layer=(20, 24), attention=(12, 8), norm=4),
    "autocast": _Bytes(inputs=4, outside=8, kept=(18, 8), layer=(24, 14), attention=(6, 4), norm=4),
    "bf16": _Bytes(inputs=2, outside=4, kept=(14, 8), layer=(16, 12), attention=(6, 4), norm=4),
}
"""With all weights trained and with adapters, by the type of products: ``autocast`` on one rank in bfloat16,
``bf16`` on several. Found by differences of ``measure_activations`` in each width."""
_EXPERTS = {False: ((4, 8), (10, 8)), True: ((2, 6), (8, 6))}
"""``kept`` and ``layer`` of each chosen expert in bfloat16, without and with adapters beside."""


def activations(shape: Shape, config: TrainerConfig) -> Activations:
    """Return the bytes that a row's tokens keep, as the update computes them."""
    lora, half = bool(config.lora_rank), config.precision == "bf16"
    alone = config.data_parallel * config.context_parallel == 1
    products = "bf16" if shape.experts or (half and not alone) else "autocast" if half else "f32"
    row = (_ADAPTERS if lora else _FULL)[products]
    norm = 0 if shape.family == "llama" else row.norm
    attention = (row.attention[0] + norm) * shape.queries + (row.attention[1] + norm) * shape.keys
    if shape.experts:
        for_kept, at_once = _EXPERTS[lora]
        kept = row.kept[0] * shape.hidden + shape.chosen * _widths(shape, for_kept)
        layer = row.layer[0] * shape.hidden + shape.chosen * _widths(shape, at_once)
    else:
        kept, layer = _widths(shape, row.kept), _widths(shape, row.layer)
    factor = 2 if shape.experts and not half else 1  # float32 experts count as twice bfloat16 ones
    return Activations(
        inputs=factor * row.inputs * shape.layers * shape.hidden,
        kept=factor * shape.layers * (kept + attention),
        layer=factor * (layer + attention),
        outside=factor * (row.outside * shape.hidden + 2 * row.inputs * shape.head),
    )


def _widths(shape: Shape, row: tuple[int, int]) -> int:
    return row[0] * shape.hidden + row[1] * shape.intermediate
