"""Consumers that transfer weights to vLLM servers; they run where the trainer's weights are.

``WriteFolder`` writes files that servers read (``disk``). ``SendLive`` drives vLLM's own transfer engines
(``nccl``, ``ipc``); it needs vllm in the trainer's environment.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from engine.files import replace_folder
from engine.inference.base import WeightStream

BUCKET_BYTES = 1 << 30
"""Maximum size of a weight file, which is held in memory; a larger tensor has its own file."""
_DIGEST_ITEMS = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class SentWeights:
    """Record of the weights that a consumer transferred."""

    digests: Mapping[str, int]
    """Digest of each tensor by its published name."""
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFolder:
    """Consumer that writes a folder of safetensors; readers see all of it or nothing."""

    folder: Path
    """Created or replaced."""
    dtype: torch.dtype
    base: str = ""
    """Folder of the model under the adapters, for their settings."""
    bucket_bytes: int = BUCKET_BYTES

    def __call__(self, weights: WeightStream) -> SentWeights:
        """Write ``model*.safetensors``, or adapters in peft's format."""
        from safetensors.torch import save_file

        from engine.models.weights.writing import write_safetensors

        draft = self.folder.with_name(f".{self.folder.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        digests: dict[str, int] = {}
        tensors = digested(weights.tensors, digests)
        try:
            if weights.adapter is None:
                write_safetensors(draft, weights.infos, tensors, max_file_bytes=self.bucket_bytes)
            else:
                named = {name: tensor.cpu().contiguous() for name, tensor in tensors}
                save_file(named, draft / "adapter_model.safetensors", metadata={"format": "pt"})
                settings = {**weights.adapter, "base_model_name_or_path": self.base}
                (draft / "adapter_config.json").write_text(json.dumps(settings))
            replace_folder(draft, self.folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        num_bytes = sum(info.num_bytes for info in weights.infos.values())
        return SentWeights(digests=digests, num_bytes=num_bytes)


def digested(tensors: Iterator[tuple[str, Tensor]], digests: dict[str, int]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors, adding the digest of each to ``digests``."""
    for name, tensor in tensors:
        digests[name] = tensor_digest(tensor)
        yield name, tensor


def tensor_digest(tensor: Tensor) -> int:
    """Return a 64-bit digest of a tensor's bytes, computed on its device.

    The values as integers, times random odd factors, are summed modulo 2⁶⁴: any single change changes the
    sum, and several cancel with a probability of about 2⁻⁶⁴ (enough against mistakes, not malice).
    """
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    flat = tensor.detach().contiguous().view(-1).view(kinds[tensor.dtype.itemsize])
    total = flat.numel()
    for piece in torch.split(flat, _DIGEST_ITEMS):
        part = (piece.long() * _factors(str(tensor.device))[: len(piece)]).sum().item()
        total = (total * 0x9E3779B97F4A7C15 + int(part)) % 2**64
    return total


@cache
def _factors(device: str) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**62), 2**62, (_DIGEST_ITEMS,), generator=generator) * 2 + 1
    return factors.to(device)
