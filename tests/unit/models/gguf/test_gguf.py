"""GGUF files as policies: weights, positions and tokens of the original models, and refusals."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine.errors import CheckpointError
from engine.models.gguf.header import read_header
from engine.models.gguf.tensors import GgufTensors
from engine.models.loader import OpenedModel, open_model
from engine.models.references import find_model
from engine.models.weights.source import read_tensor
from tests.unit.models.gguf.gguf_files import ARCHITECTURES, LLAMA3, SPECIALS, tiny_model, tokens, write_gguf

_YARN = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 128
}  # fmt: skip
_IDS = torch.arange(3, 23).unsqueeze(0)


@pytest.fixture(params=ARCHITECTURES)
def original(request: pytest.FixtureRequest) -> PreTrainedModel:
    return tiny_model(request.param)


def test_logits_are_those_of_the_original_model(original: PreTrainedModel, tmp_path: Path) -> None:
    found = _reopened(write_gguf(tmp_path / "m.gguf", original), tmp_path)
    torch.testing.assert_close(_logits(found), _logits(original), rtol=0, atol=0)


def test_quantised_weights_are_those_that_transformers_reads(
    original: PreTrainedModel, tmp_path: Path
) -> None:
    types = {
        f"blk.1.{name}.weight": kind
        for name, kind in (
            ("attn_q", GGMLQuantizationType.Q8_0),
            ("attn_k", GGMLQuantizationType.Q4_0),
            ("ffn_up", GGMLQuantizationType.Q5_1),
            ("ffn_gate", GGMLQuantizationType.F16),
        )
    }
    path = write_gguf(tmp_path / "m.gguf", original, types=types)
    read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
    weights = GgufTensors(read_header(path))
    assert set(weights.tensors) == set(read.state_dict()) - {"lm_head.weight"}
    for name in weights.tensors:
        torch.testing.assert_close(read_tensor(weights, name), read.state_dict()[name], rtol=0, atol=0)


@pytest.mark.parametrize("rope", [LLAMA3, _YARN], ids=["llama3", "yarn"])
def test_scaled_positions_are_read(rope: dict[str, Any], tmp_path: Path) -> None:
    original = tiny_model("llama", rope_parameters=rope, max_position_embeddings=16_384)
    found = _reopened(write_gguf(tmp_path / "m.gguf", original), tmp_path)
    torch.testing.assert_close(_logits(found), _logits(original), rtol=1e-5, atol=1e-5)
    plain = tiny_model("llama", max_position_embeddings=16_384)
    assert not torch.allclose(_logits(found), _logits(plain), atol=1e-3)


def test_one_table_stored_in_two_types_is_read_from_the_finer_copy(tmp_path: Path) -> None:
    original = tiny_model("qwen2")
    table = original.state_dict()["model.embed_tokens.weight"].numpy()
    path = write_gguf(
        tmp_path / "m.gguf",
        original,
        types={"token_embd.weight": GGMLQuantizationType.Q4_0},
        also=[("output.weight", table)],
    )
    weights = GgufTensors(read_header(path))
    assert weights.tied
    torch.testing.assert_close(
        read_tensor(weights, "model.embed_tokens.weight"), torch.from_numpy(table), rtol=0, atol=0
    )


def test_an_output_layer_of_its_own_is_kept(tmp_path: Path) -> None:
    original = tiny_model("qwen3", tie_word_embeddings=False)
    found = _reopened(write_gguf(tmp_path / "m.gguf", original), tmp_path)
    torch.testing.assert_close(_logits(found), _logits(original), rtol=0, atol=0)


def test_a_file_or_its_folder_is_a_policy_that_is_converted_once(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny_model("llama"), split="smollm")
    opened = open_model(str(path), home=tmp_path / "home")
    assert opened.folder is not None
    assert opened.folder == find_model(str(tmp_path), home=tmp_path / "home").folder
    assert opened.provenance["gguf"]["file"] == "m.gguf"
    written = (opened.folder / "model.safetensors").stat()
    assert _open(path, tmp_path).folder == opened.folder
    assert (opened.folder / "model.safetensors").stat() == written
    assert opened.chat().stop_ids == {tokens().index("<|im_end|>")}


@pytest.mark.parametrize(
    ("split", "numbers"), [("qwen2", ["1", "2", "3"]), ("smollm", ["1", "2", "3"]), ("gpt-2", ["12", "3"])]
)
def test_text_is_split_as_the_model_learned_it(split: str, numbers: list[str], tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny_model("qwen2" if split == "qwen2" else "llama"), split=split)
    tokenizer = _open(path, tmp_path).tokenizer
    text = f"{SPECIALS[1]}he 123"
    found = tokenizer.convert_ids_to_tokens(tokenizer.encode(text))
    assert found == [SPECIALS[1], "he", "Ġ", *numbers]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_pieces_of_gemma_are_joined_and_bytes_spelled(tmp_path: Path) -> None:
    tokenizer = _open(write_gguf(tmp_path / "m.gguf", tiny_model("gemma3_text")), tmp_path).tokenizer
    found = tokenizer.encode("he 21é", add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens(found) == ["he", "▁", "2", "1", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(found) == "he 21é"


def test_what_is_not_supported_is_refused_by_name(tmp_path: Path) -> None:
    model = tiny_model("llama")
    path = write_gguf(tmp_path / "split.gguf", model, split="hunyuan")
    with pytest.raises(CheckpointError, match="'hunyuan'"):
        _open(path, tmp_path)
    path = write_gguf(tmp_path / "family.gguf", tiny_model("qwen2"), split="gpt-2")
    with pytest.raises(CheckpointError, match="'gpt-2', and transformers"):
        _open(path, tmp_path)
    path = write_gguf(tmp_path / "tensor.gguf", model, also=[("blk.0.ssm_a.weight", np.ones(32, np.float32))])
    with pytest.raises(CheckpointError, match=r"blk\.0\.ssm_a\.weight"):
        _open(path, tmp_path)
    path = write_gguf(tmp_path / "rope.gguf", model, also=[("rope_freqs.weight", np.ones(8, np.float32) * 7)])
    with pytest.raises(CheckpointError, match="unlike Llama 3"):
        _open(path, tmp_path)
    content = write_gguf(tmp_path / "m.gguf", model).read_bytes()
    other = tmp_path / "other.gguf"
    other.write_bytes(content.replace(b"llama", b"mamba"))
    with pytest.raises(CheckpointError, match="'mamba'"):
        _open(other, tmp_path)
    with pytest.raises(CheckpointError, match="GGUF files: name one"):
        find_model(str(tmp_path), home=tmp_path)


def test_headers_with_values_of_other_kinds_are_refused(tmp_path: Path) -> None:
    content = write_gguf(tmp_path / "whole.gguf", tiny_model("llama")).read_bytes()
    changed = tmp_path / "m.gguf"
    key = b"llama.context_length"
    place = content.index(key) + len(key)
    number = struct.unpack("<II", content[place : place + 8])
    assert number == (4, 512)
    for kind, value in ((4, 0), (6, 0x7F800000), (6, 0x7FC00000)):  # zero, infinity, no number
        changed.write_bytes(content[:place] + struct.pack("<II", kind, value) + content[place + 8 :])
        with pytest.raises(CheckpointError, match=r"no number llama\.context_length"):
            _open(changed, tmp_path)
    changed.write_bytes(content[:place] + struct.pack("<IIQI", 9, 4, 1, 512) + content[place + 8 :])
    with pytest.raises(CheckpointError, match=r"no number llama\.context_length"):
        _open(changed, tmp_path)
    with changed.open("wb") as file:  # a sparse file whose first text is long
        file.write(content[:24] + struct.pack("<Q", 1 << 30))
        file.truncate(2 << 30)
    with pytest.raises(CheckpointError, match="bytes in its header"):
        _open(changed, tmp_path)


def test_damaged_files_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    content = write_gguf(tmp_path / "whole.gguf", tiny_model("llama")).read_bytes()
    damaged = tmp_path / "m.gguf"
    endless = struct.pack("<Q", 2**60)
    for changed in (
        *(content[: int(len(content) * share)] for share in (0, 0.0001, 0.001, 0.01, 0.5, 0.999)),
        b"GGUX" + content[4:],
        content[:4] + struct.pack("<I", 9) + content[8:],
        content[:8] + endless + content[16:],
        content[:16] + endless + content[24:],
        content[:24] + endless + content[32:],
    ):
        damaged.write_bytes(changed)
        with pytest.raises(CheckpointError, match=r"m\.gguf"):
            _open(damaged, tmp_path)
    damaged.unlink()
    os.mkfifo(damaged)
    with pytest.raises(CheckpointError, match="not a regular file|Invalid argument"):
        _open(damaged, tmp_path)
    assert not (tmp_path / "home").exists()


def _open(path: Path, tmp_path: Path) -> OpenedModel:
    return open_model(str(path), home=tmp_path / "home")


def _reopened(path: Path, tmp_path: Path) -> PreTrainedModel:
    """Return the model as ``transformers`` opens the converted folder."""
    found: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        str(_open(path, tmp_path).folder), attn_implementation="eager"
    )
    return found


def _logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(_IDS).logits
    return logits
