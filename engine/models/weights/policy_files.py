"""Files of a policy folder besides its weights, kept as published.

Weights contain no chat template, special tokens, end-of-sequence ids or generation settings: every checkpoint
and every export has the original files.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from engine.errors import CheckpointError
from engine.files import replace_folder
from engine.reading import read_json

CARRIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    "generation_config.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "tekken.json",
    "LICENSE*",
    "NOTICE*",
)
"""Patterns of files that are copied with the weights; none is a program."""
ADAPTERS = "adapter_config.json"
"""File in a folder of adapters over another policy, in peft's format."""
_WRITTEN = ("config.json", ADAPTERS, "provenance.json", "*.safetensors", "*.safetensors.index.json", *CARRIED)
"""Patterns of all files that a written folder of a policy or of adapters has."""
_LARGE = (
    "tokenizer.json", "vocab.json", "tekken.json", "vocab.txt", "merges.txt", ".model", ".tiktoken",
    ".index.json",
)  # fmt: skip
_READ = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "additional_chat_templates/*")
"""Patterns of the files that ``transformers`` reads whole when it opens settings or a tokenizer."""
_MAX_LARGE, _MAX_SMALL = 64 << 20, 4 << 20


def check_readable(folder: Path) -> None:
    """Check that the files ``transformers`` reads whole are regular and of a plausible size.

    Raises:
        CheckpointError: a file is a FIFO, a device or too large.
    """
    for path in (path for pattern in _READ for path in folder.glob(pattern)):
        limit = _MAX_LARGE if path.name.endswith(_LARGE) else _MAX_SMALL
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path} is not a regular file")
        if path.exists() and path.stat().st_size > limit:
            raise CheckpointError(f"{path} is larger than {limit >> 20} MiB: download it again")


def carried_files(source: Path) -> list[Path]:
    """Return the files of a folder that belong to its model's weights."""
    return [path for pattern in CARRIED for path in source.glob(pattern) if path.is_file()]


def carry_files(source: Path, out: Path) -> None:
    """Copy the files that belong to a model's weights, unchanged."""
    for path in carried_files(source):
        copy = out / path.relative_to(source)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, copy)


def read_provenance(folder: Path) -> dict[str, Any] | None:
    """Return the content of a folder's ``provenance.json``; None without one. Raises CheckpointError."""
    path = folder / "provenance.json"
    try:
        provenance = read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not isinstance(provenance, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return provenance


def write_config(config: Mapping[str, Any], out: Path, dtype: torch.dtype) -> None:
    """Write a ``config.json`` for unquantised weights of a type.

    Args:
        config: content of the original one.
        out: the folder.
        dtype: of the weights.
    """
    name = str(dtype).removeprefix("torch.")
    changed = {**config, "dtype": name} | ({"torch_dtype": name} if "torch_dtype" in config else {})
    changed.pop("quantization_config", None)
    write_json(out / "config.json", changed)


@contextmanager
def draft_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder beside ``folder``, which replaces it at the end.

    Readers see the old folder or the complete new one; after an error, nothing new.

    Raises:
        CheckpointError: ``folder`` exists and is more than a policy or adapters written here; nothing is
            removed.
    """
    _check_replaceable(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".{folder.name}.{os.getpid()}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        replace_folder(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _check_replaceable(folder: Path) -> None:
    """Raise CheckpointError unless a folder is absent, empty, or holds a policy or adapters and no more."""
    if not folder.exists() and not folder.is_symlink():
        return
    known = {path for pattern in _WRITTEN for path in folder.glob(pattern)}
    present = {path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()}
    whole = folder / "provenance.json" in present and {folder / "config.json", folder / ADAPTERS} & present
    if folder.is_symlink() or not folder.is_dir() or present - known or (present and not whole):
        raise CheckpointError(
            f"{folder} exists and is not just a policy that was written here, so it is not replaced: "
            "name a new folder, or remove this one"
        )


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON object, indented and sorted."""
    path.write_text(json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
