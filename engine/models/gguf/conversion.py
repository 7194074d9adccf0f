"""Policy folders from GGUF files: what ``transformers`` publishes, with dequantised weights.

The weights are those of the file, near the original model's and not equal to them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers
from filelock import FileLock
from tokenizers import pre_tokenizers

from engine.errors import CheckpointError, describe_error
from engine.models.gguf.header import GgufHeader, read_header
from engine.models.gguf.settings import read_model_settings
from engine.models.gguf.tensors import GgufTensors, type_names
from engine.models.weights.policy_files import draft_folder, write_json
from engine.models.weights.source import read_tensor
from engine.models.weights.writing import write_safetensors

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_DIGITS = ("smollm", "starcoder", "refact", "command-r")
_PLAIN = ("gpt-2", "default")
"""Names of the splits of text that ``transformers`` does not know; the first take digits one by one."""
_PROBES = (" Hello  world, it's 2026!\n\n\tdef f(x): return {x: 'é'}  # 12345", "naïve 你好 🙂 I'LL\r\n ")
"""Texts with words, numbers, runs of spaces, code, and letters of several scripts."""
_KEYS = ("name", "organization", "license", "finetune", "size_label", "source.url", "base_model.0.repo_url")
"""Facts of the file that its folder records, behind ``general.``."""


def converted(path: Path, home: Path) -> Path:
    """Return the policy folder of a GGUF file, which is written where it does not exist yet.

    Args:
        path: of the file.
        home: the data folder; policy folders are kept below it by the hash of their file.

    Raises:
        CheckpointError: as ``convert``.
    """
    GgufTensors(read_header(path))  # refuses what is no model before it is read whole
    digest = file_hash(path)
    folder = home / "models" / "gguf" / digest[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / "config.json").is_file():
            convert(path, folder, card={"gguf": {"file": path.name, "sha256": digest}})
    os.utime(folder)  # in use, and so not to be removed yet
    return folder


def convert(path: Path, folder: Path, *, card: Mapping[str, Any]) -> None:
    """Write the policy folder of a GGUF file; readers see nothing or the complete folder.

    Args:
        path: of the file.
        folder: created.
        card: facts for its ``provenance.json``, beside those of the file.

    Raises:
        CheckpointError: the file is damaged, or its model, types or tokenizer are not read here.
    """
    header = read_header(path)
    weights = GgufTensors(header)
    settings = read_model_settings(header, tied=weights.tied, rope_factors=weights.rope_factors())
    with draft_folder(folder) as draft:
        write_json(draft / "config.json", {**settings, "transformers_version": transformers.__version__})
        tokenizer = _tokenizer(header)
        tokenizer.save_pretrained(draft)
        _check_reopened(header, tokenizer, draft)
        write_json(draft / "provenance.json", {**_facts(header), **card})
        tensors = ((name, read_tensor(weights, name)) for name in weights.tensors)
        write_safetensors(draft, weights.tensors, tensors)


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal. Raises CheckpointError."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error


def _tokenizer(header: GgufHeader) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.gguf.gguf_tokenizer_mapping import (
        GGUF_PRE_TOKENIZER_SPLITS,
        convert_gguf_tokenizer,
        get_gguf_tokenizer,
    )

    kind = header.metadata.get("tokenizer.ggml.model")
    split = header.metadata.get("tokenizer.ggml.pre", "default")
    if kind == "gpt2" and split not in (*GGUF_PRE_TOKENIZER_SPLITS, *_DIGITS, *_PLAIN):
        raise CheckpointError(f"{header.path} splits text by '{split}', which is not read from GGUF files")
    try:
        architecture, vocabulary, settings = get_gguf_tokenizer(str(header.path))
        backend, _ = convert_gguf_tokenizer(architecture, vocabulary)
        if kind == "gpt2" and split in (*_DIGITS, *_PLAIN):
            digits = [pre_tokenizers.Digits(individual_digits=True)] * (split in _DIGITS)
            backend.pre_tokenizer = pre_tokenizers.Sequence(
                [*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
            )
        return PreTrainedTokenizerFast(tokenizer_object=backend, **settings)  # type: ignore[no-untyped-call]
    except Exception as error:  # damaged files make transformers raise anything
        raise CheckpointError(
            f"cannot read the tokenizer in {header.path}: {describe_error(error)}"
        ) from error


def _check_reopened(header: GgufHeader, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Check that a saved tokenizer is opened as it was: ``transformers`` may put its family's in its place.

    Raises:
        CheckpointError: it is not.
    """
    from transformers import AutoTokenizer

    opened = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if any(
        opened.encode(text, add_special_tokens=False) != tokenizer.encode(text, add_special_tokens=False)
        for text in _PROBES
    ):
        raise CheckpointError(
            f"{header.path} splits text by '{header.metadata.get('tokenizer.ggml.pre')}', and transformers "
            f"opens other tokenizers of the architecture '{header.architecture}' alone"
        )


def _facts(header: GgufHeader) -> dict[str, Any]:
    facts = {key: header.metadata.get(f"general.{key}") for key in _KEYS}
    return {
        "implementation": "transformers",
        "types": type_names(header),
        "general": {key: value for key, value in facts.items() if isinstance(value, str)},
    }
