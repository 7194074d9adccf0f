"""Facts about model families that their files do not contain: one row per ``model_type`` of ``config.json``.

To add a family: a row in ``_ROWS``. Any other family gets ``Family``'s defaults and follows its chat
template. Importing this loads no model.
"""

from __future__ import annotations

from dataclasses import dataclass

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Facts about the models of one ``model_type``."""

    model_type: str
    lora_targets: tuple[str, ...] = ATTENTION + MLP
    """Names of the linear layers that get adapters by default."""
    renderer: str | None = None
    """Name of the conversation renderer in ``renderers``; None: by the tokenizer's chat template."""


_ROWS = (
    Family(model_type="qwen3", renderer="qwen3"),
    Family(model_type="qwen3_moe", renderer="qwen3", lora_targets=ATTENTION),
    Family(model_type="llama", renderer="llama-3"),
    Family(model_type="gpt_oss", renderer="gpt-oss", lora_targets=ATTENTION),
    Family(model_type="glm4_moe", renderer="glm-4.5", lora_targets=ATTENTION),
)


def family_of(model_type: str) -> Family:
    """Return the family's row, or defaults."""
    return next((row for row in _ROWS if row.model_type == model_type), Family(model_type=model_type))
