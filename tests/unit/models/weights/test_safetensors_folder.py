"""Safetensors of other programs: exact reading of any layout, early detection of damage."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.errors import CheckpointError
from engine.models.weights import safetensors_folder
from engine.models.weights.safetensors_folder import SafetensorsFolder
from engine.models.weights.source import copy_rows, read_tensor

TENSORS = {
    "matrix": torch.randn(7, 3, generator=torch.Generator().manual_seed(1)),
    "half": torch.arange(12, dtype=torch.float32).view(2, 3, 2).bfloat16(),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "none": torch.empty(0, 4),
    "flags": torch.tensor([True, False, True]),
    "count": torch.tensor([3, -1], dtype=torch.int64),
    "eight": torch.ones(2, 2).to(torch.float8_e4m3fn),
}


def write_by_hand(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write the format like another program: reverse order, blanks in and after the header."""
    types = {torch.float32: "F32", torch.bfloat16: "BF16"}
    header, data = {}, b""
    for name in sorted(tensors, reverse=True):
        raw = tensors[name].view(torch.uint8).numpy().tobytes()
        header[name] = {
            "data_offsets": [len(data), len(data) + len(raw)],
            "shape": list(tensors[name].shape),
            "dtype": types[tensors[name].dtype],
        }
        data += raw
    text = json.dumps({**header, "__metadata__": {"format": "np", "by": "hand"}}, indent=3).encode()
    text += b" " * (-len(text) % 64)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize("piece", [1, 30, 1 << 20])
def test_row_ranges_are_read_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(safetensors_folder, "PIECE_BYTES", piece)
    save_file(TENSORS, tmp_path / "model.safetensors")
    folder = SafetensorsFolder(tmp_path)
    assert set(folder.tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert folder.tensors[name].shape == tensor.shape
        whole = read_tensor(folder, name)
        assert whole.dtype == tensor.dtype
        assert torch.equal(whole.view(-1).view(torch.uint8), tensor.view(-1).view(torch.uint8))
    for start in range(8):
        for stop in range(start, 8):
            out = torch.empty(stop - start, 3, dtype=torch.float64)
            copy_rows(folder, "matrix", out, start)
            assert torch.equal(out, TENSORS["matrix"][start:stop].double())


def test_a_file_with_an_unusual_layout_is_read_exactly(tmp_path: Path) -> None:
    tensors = {name: TENSORS[name] for name in ("matrix", "half")}
    write_by_hand(tmp_path / "model.safetensors", tensors)
    folder = SafetensorsFolder(tmp_path)
    assert all(torch.equal(read_tensor(folder, name), tensor) for name, tensor in tensors.items())


def sharded(folder: Path) -> Path:
    save_file({"a": torch.ones(4, 2), "b": torch.zeros(2)}, folder / "model-00001-of-00002.safetensors")
    save_file({"c": torch.full((3,), 7.0)}, folder / "model-00002-of-00002.safetensors")
    write_index(folder, {"a": 1, "b": 1, "c": 2})
    return folder


def write_index(folder: Path, placed: dict[str, int]) -> None:
    names = {name: f"model-0000{number}-of-00002.safetensors" for name, number in placed.items()}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


def test_symlinked_shards_as_in_the_hub_cache_are_read(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    for path in sharded(tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / path.name).symlink_to(Path("..") / "blobs" / path.name)
    folder = SafetensorsFolder(tmp_path / "snapshot")
    assert {name: read_tensor(folder, name).sum().item() for name in folder.tensors} == {
        "a": 8, "b": 0, "c": 21
    }  # fmt: skip


Damage = Callable[[Path], object]
FIRST, SECOND = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))


def cut(size: int) -> Damage:
    """Truncate the first file to ``size`` bytes, or by ``-size`` bytes if negative."""
    return lambda folder: os.truncate(
        folder / FIRST, size if size >= 0 else (folder / FIRST).stat().st_size + size
    )


def overwrite(data: bytes) -> Damage:
    return lambda folder: (folder / FIRST).write_bytes(data + (folder / FIRST).read_bytes()[len(data) :])


def describe(size: int, **entries: tuple[str, list[int], list[int]]) -> Damage:
    """Write a first file of tensors (type, shape, offsets) with ``size`` bytes of data."""
    named = {
        name: dict(zip(("dtype", "shape", "data_offsets"), e, strict=True)) for name, e in entries.items()
    }
    header = json.dumps(named).encode()
    return lambda folder: (folder / FIRST).write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * size)


def index(text: str) -> Damage:
    return lambda folder: (folder / "model.safetensors.index.json").write_text(text)


DAMAGED = "model-00001-of-00002.*damaged or incomplete"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / SECOND).unlink(), "lacks 1 of the 2 files.*model-00002-of-00002"),
        (cut(0), "model-00001-of-00002.*0 bytes.*damaged or incomplete"),
        (cut(40), DAMAGED),
        (cut(-1), DAMAGED),
        (overwrite(b"\xff" * 8), DAMAGED),
        (overwrite(struct.pack("<Q", 1 << 40)), DAMAGED),
        (describe(64, a=("F32", [1000, 1000], [0, 4_000_000])), DAMAGED),
        (describe(32, a=("F32", [4, 2], [0, 32]), b=("F32", [4, 2], [0, 32])), DAMAGED),
        (lambda folder: write_index(folder, {"a": 1, "z": 2}), "places tensor z in model-00002.*not contain"),
        (lambda folder: write_index(folder, {"a": 2, "b": 1, "c": 2}), "places tensor a in model-00002"),
        (index('{"weight_map": {"a": "../b.safetensors"}}'), r"tensor a in '\.\./b\.safetensors': expected"),
        (index('{"weight_map": {"a": "model.bin"}}'), "places tensor a in 'model.bin'"),
        (index("{"), "is not an index"),
        (index('{"weight_map": 3}'), "is not an index"),
        (index('{"weight_map": {"a": 3}}'), "places tensor a in 3"),
        (describe(2, a=("F4", [4], [0, 2])), "tensor a of .*model-00001.*F4.*unquantised"),
    ],
)  # fmt: skip
def test_damaged_folders_are_refused_before_any_reading(tmp_path: Path, damage: Damage, message: str) -> None:
    damage(sharded(tmp_path))
    with pytest.raises(CheckpointError, match=message):
        SafetensorsFolder(tmp_path)


def test_folders_without_regular_safetensors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint folder"):
        SafetensorsFolder(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="has no weights: expected model.safetensors"):
        SafetensorsFolder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin, a pickle.*convert"):
        SafetensorsFolder(tmp_path)
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="not a regular file"):
        SafetensorsFolder(tmp_path)


def test_a_file_truncated_while_reading_is_an_error(tmp_path: Path) -> None:
    save_file({"a": torch.ones(64, 64)}, tmp_path / "model.safetensors")
    folder = SafetensorsFolder(tmp_path)
    os.truncate(tmp_path / "model.safetensors", 1000)
    with pytest.raises(CheckpointError, match="became shorter while tensor a was read"):
        read_tensor(folder, "a")
