"""Shapes of the built-in transformer. Importing this does not load torch.

To add an architecture: put a named ``TransformerConfig`` in ``ARCHITECTURES`` (``fresh:<name>``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError

SHIPPED = Path(__file__).parent / "shipped"
"""Folder of the policies that ship with the engine (``builtin:<name>``)."""


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Shape of a model, under the keys of Qwen3's ``config.json``.

    ``from_json(qwen3_config.to_dict())`` converts a ``transformers.Qwen3Config``.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int = 2048
    """Maximum sequence length, tokens."""
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    rope_parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"rope_theta": 10_000.0, "rope_type": "default"}
    )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TransformerConfig:
        """Parse the content of ``config.json``.

        Raises:
            CheckpointError: another architecture, or a setting this model does not have.
        """
        if data.get("model_type") != "qwen3":
            raise CheckpointError(f"model_type is {data.get('model_type')!r}; only 'qwen3' is supported")
        if data.get("attention_bias") or data.get("use_sliding_window"):
            raise CheckpointError("attention_bias and use_sliding_window are not supported")
        rope = data.get("rope_parameters") or {"rope_theta": data.get("rope_theta", 10_000.0)}
        if rope.get("rope_type", "default") != "default":
            raise CheckpointError(f"rope_type {rope['rope_type']!r} is not supported")
        names = set(cls.__dataclass_fields__) - {"rope_parameters"}
        values = {name: data[name] for name in names if name in data}
        rope = {"rope_theta": float(rope["rope_theta"]), "rope_type": "default"}
        return cls(**values, rope_parameters=rope)

    def to_json(self) -> dict[str, Any]:
        """Return the content of a ``config.json`` that ``transformers`` reads."""
        return {
            **asdict(self),
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "attention_bias": False,
            "hidden_act": "silu",
            "use_sliding_window": False,
        }


ARCHITECTURES: Mapping[str, TransformerConfig] = {
    "quickstart": TransformerConfig(
        vocab_size=2048,
        hidden_size=160,
        num_hidden_layers=4,
        num_attention_heads=5,
        num_key_value_heads=5,
        head_dim=32,
        intermediate_size=448,
    ),
    "frozenlake": TransformerConfig(
        vocab_size=384,
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=32,
        intermediate_size=256,
        max_position_embeddings=1024,
    ),
    "tiny": TransformerConfig(
        vocab_size=2048,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=64,
    ),
}
