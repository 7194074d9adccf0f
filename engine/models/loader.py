"""Loading of models for sampling and training, and saving of built-in policies.

A folder has the files that ``transformers`` publishes: config.json, safetensors, tokenizer files. A
provenance.json that names no other implementation marks a built-in policy, computed by our own
``Transformer``: its sampler is fast, and its log-probabilities are bit-equal in sampling and scoring.
References are described in ``engine.models.references``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from engine.errors import CheckpointError, describe_error
from engine.models.base import LanguageModel
from engine.models.builtin.architectures import ARCHITECTURES, SHIPPED, TransformerConfig
from engine.models.builtin.tokenizer import BpeTokenizer, load_tokenizer, phrase_tokenizer
from engine.models.builtin.transformer import Transformer
from engine.models.chat.base import Chat
from engine.models.chat.chatml import ChatML
from engine.models.chat.factory import open_chat
from engine.models.families import Family, family_of
from engine.models.references import Reference, find_model
from engine.models.sharding import load_weights
from engine.models.weights.checkpoint_folder import open_weights, read_config
from engine.models.weights.model_weights import stored_tensors
from engine.models.weights.policy_files import (
    carry_files,
    check_readable,
    draft_folder,
    read_provenance,
    write_config,
    write_json,
)
from engine.models.weights.source import TensorsInMemory, WeightSource, read_tensor
from engine.models.weights.writing import write_safetensors


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """A language model with its tokenizer and files."""

    model: LanguageModel
    tokenizer: Any
    """``BpeTokenizer`` of a built-in policy, else ``transformers``' own."""
    folder: Path | None
    """Folder with its original files; None for the random weights of a built-in architecture."""
    provenance: Mapping[str, Any]
    """Content of its ``provenance.json``; empty without one."""
    source: WeightSource | None = None
    """Weights not read yet, if the model was opened without reading them."""

    @property
    def family(self) -> Family:
        """Return the facts about its family."""
        return family_of(self.model.family)

    def chat(self) -> Chat:
        """Return its chat format. Raises CheckpointError if its tokenizer does not support conversations."""
        return open_chat(self.tokenizer, self.family, self.folder)

    def builtin(self) -> tuple[Transformer, BpeTokenizer]:
        """Return model and tokenizer of a built-in policy. Raises CheckpointError for any other model."""
        if not isinstance(self.model, Transformer):
            raise CheckpointError(
                f"{self.folder} is a model of family '{self.model.family}', but this needs a built-in policy"
            )
        return self.model, self.tokenizer


def open_model(
    ref: str, *, home: Path, dtype: torch.dtype = torch.float32, max_context: int = 0, read: bool = True
) -> OpenedModel:
    """Open a model for sampling or training.

    Args:
        ref: see ``engine.models.references``.
        home: the data folder, for ``run:<id>``.
        dtype: of the weights; a built-in policy's stay float32.
        max_context: tokens that a conversation may have.
        read: read the weights; else they are the result's ``source``, the parameters have arbitrary values,
            and those of a published model are on the meta device.

    Raises:
        CheckpointError: missing, incomplete, made for shorter conversations, or a model that cannot be
            trained here.
        PreflightError: a model of the hub cannot be downloaded.
    """
    reference = find_model(ref, home=home)
    opened = _open(reference, dtype)
    if max_context > opened.model.max_context:
        raise CheckpointError(
            f"agent.max_context is {max_context} tokens, but '{ref}' was made for at most "
            f"{opened.model.max_context}: lower agent.max_context, or extend the model's context in its "
            "config.json (rope_parameters, e.g. of rope_type 'yarn')"
        )
    if opened.folder is None or reference.random:
        return opened
    source = open_weights(opened.folder, opened.model)
    if not read:
        return replace(opened, source=source)
    load_weights(opened.model, opened.model, source, torch.device("cpu"))
    return opened


def _open(found: Reference, dtype: torch.dtype) -> OpenedModel:
    """Return a model without reading its stored weights."""
    if found.folder is None:
        assert found.architecture is not None
        model = Transformer(ARCHITECTURES[found.architecture])
        return OpenedModel(
            model=model, tokenizer=fresh_tokenizer(found.architecture), folder=None, provenance={}
        )
    provenance = read_provenance(found.folder)
    if is_builtin(provenance):
        transformer, bpe = _build_builtin(found.folder)
        return OpenedModel(model=transformer, tokenizer=bpe, folder=found.folder, provenance=provenance or {})
    from engine.models.published.pretrained import build_pretrained  # transformers takes seconds to import

    pretrained = build_pretrained(found.folder, dtype=dtype, random=found.random)
    tokenizer = _published_tokenizer(found.folder)
    _check_vocabulary(found.folder, len(tokenizer), pretrained.vocab_size)
    return OpenedModel(
        model=pretrained, tokenizer=tokenizer, folder=found.folder, provenance=provenance or {}
    )


def is_builtin(provenance: Mapping[str, Any] | None) -> bool:
    """Return whether a ``provenance.json`` marks a built-in policy, computed by our own ``Transformer``."""
    return provenance is not None and provenance.get("implementation", "builtin") == "builtin"


def _published_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    check_readable(folder)
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # damaged files make transformers raise anything
        raise CheckpointError(f"cannot read the tokenizer in {folder}: {describe_error(error)}") from error


def _check_vocabulary(folder: Path, tokens: int, rows: int) -> None:
    if tokens > rows:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokens} tokens, the model only {rows}: they do not belong together"
        )


def read_chat(folder: Path) -> Chat:
    """Open the chat format of a policy folder without its weights.

    Raises:
        CheckpointError: the tokenizer is missing or does not support conversations.
    """
    if is_builtin(read_provenance(folder)):
        return ChatML(load_tokenizer(folder))
    family = family_of(read_config(folder)["model_type"])
    return open_chat(_published_tokenizer(folder), family, folder)


def fresh_tokenizer(architecture: str) -> BpeTokenizer:
    """Return the tokenizer of a built-in architecture with random weights."""
    if architecture == "frozenlake":
        phrases = json.loads((SHIPPED / "frozenlake" / "phrases.json").read_text())
        return phrase_tokenizer(phrases)
    return load_tokenizer(SHIPPED / "quickstart")


def save_policy_checkpoint(
    folder: Path,
    model: Transformer,
    tokenizer: BpeTokenizer,
    provenance: Mapping[str, Any],
    *,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write a checkpoint folder; readers see the old one or the complete new one.

    Args:
        folder: created or replaced.
        model: model with the weights.
        tokenizer: tokenizer of the model.
        provenance: its origin (command, seed, data, versions, metrics); must be JSON.
        dtype: type of the stored weights; bfloat16 halves the size.
    """
    with draft_folder(folder) as draft:
        weights = TensorsInMemory({name: tensor.to(dtype) for name, tensor in model.state_dict().items()})
        tensors = ((name, read_tensor(weights, name)) for name in weights.tensors)
        write_safetensors(draft, weights.tensors, tensors)
        _write_builtin_files(draft, model, tokenizer, dtype)
        write_json(draft / "provenance.json", provenance)


def save_policy(
    folder: Path, opened: OpenedModel, provenance: Mapping[str, Any], *, dtype: torch.dtype
) -> None:
    """Write a policy folder as models are published; readers see the old one or the complete new one.

    Args:
        folder: created or replaced.
        opened: the model, with its current weights.
        provenance: origin of the weights; must be JSON.
        dtype: of the stored weights.
    """
    if isinstance(opened.model, Transformer):
        save_policy_checkpoint(folder, opened.model, opened.tokenizer, provenance, dtype=dtype)
        return
    from engine.models.weights.conversion import iterate_published, meta_network, published_tensors

    weights = TensorsInMemory(stored_tensors(opened.model))
    network = meta_network(cast(Any, opened.model.config))
    with draft_folder(folder) as draft:
        write_safetensors(
            draft,
            published_tensors(weights.tensors, network, dtype),
            iterate_published(weights, network, dtype),
        )
        write_policy_files(draft, opened, provenance, dtype=dtype)


def write_policy_files(
    folder: Path, opened: OpenedModel, provenance: Mapping[str, Any], *, dtype: torch.dtype = torch.float32
) -> None:
    """Write the files of a policy folder besides the weights: the model's original files, and provenance.

    Args:
        folder: exists.
        opened: the model.
        provenance: origin of the weights; must be JSON.
        dtype: of the weights.
    """
    if isinstance(opened.model, Transformer):
        _write_builtin_files(folder, opened.model, opened.tokenizer, dtype)
        write_json(folder / "provenance.json", provenance)
        return
    assert opened.folder is not None
    write_config(read_config(opened.folder), folder, dtype)
    carry_files(opened.folder, folder)
    write_json(folder / "provenance.json", {**provenance, "implementation": "transformers"})


def copy_files(opened: OpenedModel, folder: Path) -> OpenedModel:
    """Return the model with a copy of its files, as the originals may be removed during training.

    Args:
        opened: the model.
        folder: of the copy; an existing one is kept.
    """
    if opened.folder is None or isinstance(opened.model, Transformer):
        return opened
    if not folder.exists():
        with draft_folder(folder) as draft:
            write_json(draft / "config.json", read_config(opened.folder))
            carry_files(opened.folder, draft)
    return replace(opened, folder=folder)


def _write_builtin_files(
    folder: Path, model: Transformer, tokenizer: BpeTokenizer, dtype: torch.dtype
) -> None:
    write_config(model.config.to_json(), folder, dtype)
    tokenizer.save(folder)


def _build_builtin(folder: Path) -> tuple[Transformer, BpeTokenizer]:
    try:
        config = TransformerConfig.from_json(read_config(folder))
        model = Transformer(config)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{folder / 'config.json'} describes no model: {error}") from error
    tokenizer = load_tokenizer(folder)
    _check_vocabulary(folder, tokenizer.vocab_size, config.vocab_size)
    return model, tokenizer
