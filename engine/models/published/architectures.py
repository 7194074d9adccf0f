"""Check that an architecture of ``transformers`` is a causal language model that can train on packed rows.

Every layer has to mix tokens by our attention alone: a recurrent state, a convolution (Mamba, linear
attention) or another mask would mix the sequences of a packed row.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from engine.errors import CheckpointError
from engine.models.published.probe import probe
from engine.models.published.shapes import rotary_settings

_ROTARY = ("default", "linear", "yarn", "llama3", "proportional")
"""Position encodings that depend on a token's position alone."""
_LAYERS = {"full_attention", "sliding_attention"}


def check_architecture(config: PreTrainedConfig) -> None:
    """Raise CheckpointError, with reason and remedy, for a model that cannot be trained here."""
    family = config.model_type
    if config.is_encoder_decoder:
        raise _refused(family, "is an encoder-decoder")
    if config.get_text_config() is not config:
        raise _refused(family, "reads images or sound besides text; take the text-only variant of the model")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise _refused(family, "is not one of transformers' causal language models")
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if getattr(model_class, "_is_stateful", False):
        raise _refused(family, "carries a recurrent state, which packed sequences would share")
    if not getattr(model_class, "_supports_attention_backend", False):
        raise _refused(family, "does not support another attention implementation")
    for kind in set(getattr(config, "layer_types", None) or ()) - _LAYERS:
        raise _refused(family, f"has layers of type '{kind}', which packed rows do not support")
    for encoding in rotary_settings(config.to_dict()):
        rope = encoding.get("rope_type", "default")
        if rope not in _ROTARY:
            raise _refused(
                family,
                f"has position encodings of rope_type '{rope}', which change with the longest sequence; "
                f"set rope_parameters in its config.json to one of {', '.join(_ROTARY)}",
            )
    reason = probe(config)
    if reason is not None:
        raise _refused(family, reason)


def _refused(family: str, why: str) -> CheckpointError:
    return CheckpointError(f"models of family '{family}' cannot be trained here: this one {why}")
