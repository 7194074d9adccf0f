"""Weights of a GGUF file by their published names, dequantised to float32, some rows at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from torch import Tensor

from engine.errors import CheckpointError
from engine.models.gguf.header import GgufHeader, StoredTensor
from engine.models.weights.source import PIECE_BYTES, TensorInfo

_READ_TYPES = {
    GGMLQuantizationType[name].value
    for name in (
        "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
        "IQ4_NL", "IQ4_XS",
    )
}  # fmt: skip
ROPE_FACTORS = "rope_freqs.weight"
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
_OUTSIDE = {
    EMBEDDING: "model.embed_tokens.weight",
    OUTPUT: "lm_head.weight",
    "output_norm.weight": "model.norm.weight",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_SAME_TABLE = 0.5
"""Relative difference up to which output layer and embedding are two roundings of one table; four bits
differ by a tenth, unrelated tables by more than 1."""
_COMPARED = 256
"""Rows of the tables that are compared."""


class GgufTensors:
    """``WeightSource`` of the tensors of a GGUF file, in the layout of ``transformers``.

    Args:
        header: of the file.

    Raises:
        CheckpointError: the embedding is missing, or a tensor has an unknown name or type, or an impossible
            shape, or ends behind the file.
    """

    def __init__(self, header: GgufHeader) -> None:
        self._header = header
        self._stored: dict[str, str] = {}
        if EMBEDDING not in header.tensors:
            raise CheckpointError(f"{header.path} has no {EMBEDDING}")
        size = header.path.stat().st_size
        for name, tensor in header.tensors.items():
            _check(header.path, size, name, tensor)
            if name != ROPE_FACTORS:
                self._stored[_published_name(header, name)] = name
        self.tied = self._tie()
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(header.tensors[stored].shape, torch.float32)
            for name, stored in self._stored.items()
        }

    def where(self, name: str) -> str:
        """Return the file of a tensor, for messages."""
        return f"{self._header.path} ({self._stored[name]})"

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Tensor]:
        """Yield rows ``start`` … ``stop`` in consecutive pieces."""
        stored = self._stored[name]
        heads = self._interleaved_heads(stored)
        if heads is not None:
            yield _in_halves(torch.cat(list(self._pieces(stored, 0, None))), heads)[start:stop]
            return
        for piece in self._pieces(stored, start, stop):
            yield piece - 1 if self._is_shifted(stored) else piece

    def rope_factors(self) -> list[float] | None:
        """Return the factors of the frequencies of positions, [head size / 2], where the file has them."""
        if ROPE_FACTORS not in self._header.tensors:
            return None
        return torch.cat(list(self._pieces(ROPE_FACTORS, 0, None))).tolist()

    def _pieces(self, stored: str, start: int, stop: int | None) -> Iterator[Tensor]:
        tensor = self._header.tensors[stored]
        if len(tensor.shape) == 1:
            yield self._read(tensor, 0, 1)[0][start:stop]
            return
        stop = tensor.shape[0] if stop is None else stop
        step = max(1, PIECE_BYTES // (4 * tensor.shape[-1]))
        for first in range(start, stop, step):
            yield self._read(tensor, first, min(step, stop - first))

    def _read(self, tensor: StoredTensor, first: int, count: int) -> Tensor:
        """Return some rows, [count, row], in float32."""
        with FileIO(self._header.path) as file:
            file.seek(tensor.offset + first * _row_bytes(tensor))
            content = file.read(count * _row_bytes(tensor))
        if len(content) < count * _row_bytes(tensor):
            raise CheckpointError(f"{self._header.path} became shorter while it was read: copy it here again")
        blocks = np.frombuffer(content, dtype=np.uint8).reshape(count, _row_bytes(tensor))
        return torch.from_numpy(
            np.array(dequantize(blocks, GGMLQuantizationType(tensor.type)), dtype=np.float32)
        )

    def _tie(self) -> bool:
        """Leave out the coarser copy of one table; return whether output layer and embedding are one."""
        tensors = self._header.tensors
        if OUTPUT not in tensors:
            return True
        if tensors[OUTPUT].shape != tensors[EMBEDDING].shape:
            return False
        rows = range(0, tensors[EMBEDDING].shape[0], max(1, tensors[EMBEDDING].shape[0] // _COMPARED))
        embedding, output = (
            torch.cat([self._read(tensors[name], row, 1) for row in rows]) for name in (EMBEDDING, OUTPUT)
        )
        if torch.linalg.norm(embedding - output) > _SAME_TABLE * torch.linalg.norm(output):
            return False
        finer = max((EMBEDDING, OUTPUT), key=lambda name: _row_bytes(tensors[name]))
        del self._stored[_OUTSIDE[OUTPUT]]
        self._stored[_OUTSIDE[EMBEDDING]] = finer
        return True

    def _interleaved_heads(self, stored: str) -> int | None:
        """Return the number of heads of a projection whose rows llama.cpp pairs for its rotation."""
        if self._header.architecture != "llama" or not re.search(r"\.attn_[qk]\.", stored):
            return None
        heads = self._header.count("attention.head_count")
        return heads if ".attn_q." in stored else self._header.count("attention.head_count_kv", heads)

    def _is_shifted(self, stored: str) -> bool:
        """Return whether a norm is stored with 1 added, which Gemma's code adds itself."""
        return self._header.architecture == "gemma3" and stored.endswith("norm.weight")


def type_names(header: GgufHeader) -> list[str]:
    """Return the names of the types of a file's tensors, sorted."""
    return sorted({GGMLQuantizationType(tensor.type).name for tensor in header.tensors.values()})


def _row_bytes(tensor: StoredTensor) -> int:
    """Return the size of a row (one index of all dimensions but the last)."""
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.type)]
    return tensor.shape[-1] // block * size


def _check(path: Path, size: int, name: str, tensor: StoredTensor) -> None:
    """Raise CheckpointError for a tensor that cannot be read from a file of ``size`` bytes."""
    if tensor.type not in _READ_TYPES:
        raise CheckpointError(f"{path}: tensor {name} has the type {tensor.type}, which is not read")
    kind = GGMLQuantizationType(tensor.type)
    if not tensor.shape or 0 in tensor.shape or tensor.shape[-1] % GGML_QUANT_SIZES[kind][0]:
        raise CheckpointError(f"{path}: tensor {name} of type {kind.name} has the shape {list(tensor.shape)}")
    if tensor.offset + math.prod(tensor.shape[:-1]) * _row_bytes(tensor) > size:
        raise CheckpointError(f"{path}: tensor {name} ends behind its {size:,} bytes; download it again")


def _published_name(header: GgufHeader, name: str) -> str:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    known = _IN_LAYER | (_GEMMA if header.architecture == "gemma3" else {})
    match = _LAYER.fullmatch(name)
    if match is None or match[2] not in known:
        raise CheckpointError(
            f"{header.path} has the tensor {name}, which this architecture does not have here"
        )
    return f"model.layers.{match[1]}.{known[match[2]]}.{match[3]}"


def _in_halves(rows: Tensor, heads: int) -> Tensor:
    """Return the rows of a projection with each head's pairs (2i, 2i + 1) as two halves (i, i + size / 2)."""
    pairs = rows.view(heads, -1, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
