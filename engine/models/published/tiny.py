"""Tiny random models of another model's architecture, for dry runs without its weights or a GPU.

The first two layers are kept, or as many as cover all kinds; sizes shrink. The byte-level tokenizer has the
original's special tokens and chat template, or ChatML's if the original has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerFast

from engine.errors import CheckpointError
from engine.models.published.architectures import check_architecture
from engine.models.published.networks import build_causal
from engine.models.published.shapes import SHAPES
from engine.models.references import find_model
from engine.models.weights.checkpoint_folder import read_settings

_SIZES: Mapping[str, int] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "query_pre_attn_scalar": 16,
}
"""Sizes of the tiny model, for settings that the architecture has."""
_LAYERS = 2
_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
_TEMPLATE = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}"""


def write_tiny_model(ref: str, folder: Path, *, home: Path, seed: int = 0) -> Path:
    """Write a tiny random model of the architecture that a reference names; return its folder.

    Args:
        ref: a folder, a ``config.json``, a model of the hub, or one of ``SHAPES``.
        folder: created.
        home: the data folder, for ``run:<id>``.
        seed: seed of the weights.

    Raises:
        CheckpointError: there is no such model, or its architecture cannot be trained here.
        PreflightError: the model is neither known nor in the hub's cache, and the hub cannot be reached.
    """
    config, source = _original(ref, home)
    check_architecture(config)
    tokenizer = _tiny_tokenizer(source)
    tiny = _shrunk(config, tokenizer)
    causal = build_causal(tiny, seed=seed)
    causal.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _original(ref: str, home: Path) -> tuple[PreTrainedConfig, Path | None]:
    """Return the configuration of the original, and its folder where there is one."""
    path = Path(ref)
    if ref in SHAPES and not path.exists():
        settings = dict(SHAPES[ref])
        return AutoConfig.for_model(settings.pop("model_type"), **settings), None
    folder = path.parent if path.is_file() else find_model(ref, home=home).folder
    if folder is None:
        raise CheckpointError(f"'{ref}' is a built-in architecture, which is tiny as it is: use it directly")
    return read_settings(folder), folder


def _shrunk(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast) -> PreTrainedConfig:
    settings = config.to_dict()
    family = settings.pop("model_type")
    kinds = settings.get("layer_types")
    kept = _layers(kinds) if kinds else _LAYERS
    settings |= {name: size for name, size in _SIZES.items() if isinstance(settings.get(name), int)}
    settings |= {
        "num_hidden_layers": kept,
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
    }
    if kinds:
        settings["layer_types"] = kinds[:kept]
    return AutoConfig.for_model(family, **settings)


def _layers(kinds: Sequence[str]) -> int:
    """Return the number of leading layers that cover every kind."""
    return max(_LAYERS, *(kinds.index(kind) + 1 for kind in set(kinds)))


def _tiny_tokenizer(source: Path | None) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer with the special tokens and the template of a folder."""
    specials, template, end = list(_CHATML), _TEMPLATE, "<|im_end|>"
    if source is not None and (source / "tokenizer_config.json").exists():
        original = AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False)
        added = sorted(original.added_tokens_decoder.items())
        specials = [str(token) for _, token in added] or specials
        template = original.chat_template or template
        end = original.eos_token or end
        specials += [] if end in specials else [end]
    alphabet = [*specials, *sorted(ByteLevel.alphabet())]
    backend = Tokenizer(BPE(vocab={token: number for number, token in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    tiny: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        eos_token=end,
        pad_token=specials[0],
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )
    return tiny
