"""Policy checkpoints: a folder with config.json, model.safetensors, tokenizer.json, provenance.json.

The folder is what ``transformers`` reads as a Qwen3 model. References name one: ``builtin:<name>`` ships with
the engine, ``run:<id>`` is a run's last checkpoint, ``fresh:<architecture>`` has random weights and that
architecture's tokenizer, anything else is a folder. To add a scheme: a branch in ``_folder_of``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from engine.errors import CheckpointError
from engine.models.base import LanguageModel
from engine.models.builtin.tokenizer import BpeTokenizer, load_tokenizer, phrase_tokenizer
from engine.models.builtin.transformer import ARCHITECTURES, Transformer, TransformerConfig
from engine.models.families import Family, family_of

BUILTIN = Path(__file__).parent / "builtin" / "shipped"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """A language model with what belongs to it."""

    model: LanguageModel
    tokenizer: Any
    """``BpeTokenizer`` of a built-in policy, else ``transformers``' own."""
    family: Family
    folder: Path | None
    """Folder with its original files; None for the random weights of a built-in architecture."""
    provenance: Mapping[str, Any]
    """Content of its ``provenance.json``; empty without one."""


def open_model(ref: str, *, home: Path, dtype: torch.dtype = torch.float32) -> OpenedModel:
    """Open a model for sampling or training.

    Args:
        ref: see the module's docstring.
        home: the data folder, for ``run:<id>``.
        dtype: of the weights; a built-in policy's stay float32.

    Raises:
        CheckpointError: missing, incomplete, or a model that cannot be trained here.
    """
    scheme, _, name = ref.partition(":")
    if scheme == "fresh" and name in ARCHITECTURES:
        model, tokenizer = load_policy_checkpoint(ref, home=home)
        return OpenedModel(
            model=model, tokenizer=tokenizer, family=family_of(model.family), folder=None, provenance={}
        )
    folder = Path(name) if scheme == "fresh" else _folder_of(ref, home)
    provenance = _provenance(folder)
    if provenance is not None and provenance.get("implementation", "builtin") == "builtin":
        model, tokenizer = _load_folder(folder)
        return OpenedModel(
            model=model,
            tokenizer=tokenizer,
            family=family_of(model.family),
            folder=folder,
            provenance=provenance,
        )
    from engine.models.pretrained import load_pretrained  # transformers takes seconds to import

    pretrained = load_pretrained(folder, dtype=dtype, random=scheme == "fresh")
    return OpenedModel(
        model=pretrained,
        tokenizer=_load_published_tokenizer(folder),
        family=family_of(pretrained.family),
        folder=folder,
        provenance=provenance or {},
    )


def _provenance(folder: Path) -> dict[str, Any] | None:
    path = folder / "provenance.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    return found


def _load_published_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read the tokenizer in {folder}: {error}") from error


def load_policy_checkpoint(ref: str, *, home: Path) -> tuple[Transformer, BpeTokenizer]:
    """Open a checkpoint for sampling or training, weights in float32.

    Args:
        ref: see the module's docstring.
        home: the data folder, for ``run:<id>``.

    Raises:
        CheckpointError: missing, incomplete, or not a model of this architecture.
    """
    scheme, _, name = ref.partition(":")
    if scheme == "fresh" and name:
        if name not in ARCHITECTURES:
            raise CheckpointError(f"unknown architecture '{name}'; known: {', '.join(sorted(ARCHITECTURES))}")
        return Transformer(ARCHITECTURES[name]), fresh_tokenizer(name)
    return _load_folder(_folder_of(ref, home))


def fresh_tokenizer(architecture: str) -> BpeTokenizer:
    """Return the tokenizer that goes with an architecture's random weights."""
    if architecture == "frozenlake":
        phrases = json.loads((BUILTIN / "frozenlake" / "phrases.json").read_text())
        return phrase_tokenizer(phrases)
    return load_tokenizer(BUILTIN / "quickstart")


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
        model: its weights.
        tokenizer: the model's.
        provenance: its origin (command, seed, data, versions, metrics); must be JSON.
        dtype: type of the stored weights; bfloat16 halves the size.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".{folder.name}.{os.getpid()}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    _write_json(draft / "config.json", {**model.config.to_json(), "dtype": str(dtype).split(".")[1]})
    state = model.state_dict()
    weights = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in state.items()}
    save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
    (draft / "model.safetensors").chmod(0o644)  # the writer makes it private
    tokenizer.save(draft)
    _write_json(draft / "provenance.json", dict(provenance))
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)


def _folder_of(ref: str, home: Path) -> Path:
    scheme, _, name = ref.partition(":")
    if scheme in ("builtin", "run") and _NAME.fullmatch(name) is None:
        raise CheckpointError(f"'{ref}' names no checkpoint: expected {scheme}:NAME without folders")
    if scheme == "builtin" and name:
        return BUILTIN / name
    if scheme == "run" and name:
        found = sorted((home / "runs" / name / "checkpoints").glob("[0-9]*"))
        if not found:
            raise CheckpointError(f"run {name} has no checkpoint yet")
        return found[-1]
    return Path(ref)


def _load_folder(folder: Path) -> tuple[Transformer, BpeTokenizer]:
    try:
        config = TransformerConfig.from_json(json.loads((folder / "config.json").read_text()))
        weights = load_file(folder / "model.safetensors")
        model = Transformer(config)
        model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"cannot read the checkpoint {folder}: {error}") from error
    tokenizer = load_tokenizer(folder)
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(f"{folder}: the tokenizer has more tokens than the model")
    return model, tokenizer


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n")
