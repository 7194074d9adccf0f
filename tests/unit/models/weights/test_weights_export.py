"""Exports and checkpoints preserve weights, tokenizer, chat template and generation settings."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict_saver import save
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from engine.errors import CheckpointError
from engine.models.loader import open_model, save_policy_checkpoint, write_policy_files
from engine.models.sharding import load_weights
from engine.models.weights.checkpoint_folder import open_weights
from engine.models.weights.export import export_folder
from engine.models.weights.model_weights import stored_tensors
from engine.models.weights.safetensors_folder import SafetensorsFolder
from engine.models.weights.source import read_tensor
from engine.trainer.shards import stored_part
from tests.unit.models import small
from tests.unit.models.chat.chat_templates import SPECIALS
from tests.unit.models.tiny_families import write_tiny

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content | trim }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
TALK = [{"role": "system", "content": " rules "}, {"role": "user", "content": "häß <b>\n"}]
CARRIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "LICENSE",
)


def write_published(folder: Path, family: str, **shape: Any) -> Path:
    """Write a folder like those of hubs: several weight files, settings, a licence and a program."""
    write_tiny(folder, family, seed=6, chat_template=TEMPLATE, max_shard_size="30KB", **shape)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|mine|>"]})
    tokenizer.save_pretrained(folder)
    end = tokenizer.convert_tokens_to_ids([SPECIALS[family][1], "<|mine|>"])
    settings = {"eos_token_id": end, "pad_token_id": 0, "temperature": 0.6, "top_k": 20, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    (folder / "LICENSE").write_text("free")
    (folder / "modeling_custom.py").write_text("raise SystemExit")
    return folder


def assert_same_weights(actual: Path, expected: Path, dtype: torch.dtype) -> None:
    ours, theirs = SafetensorsFolder(actual), SafetensorsFolder(expected)
    assert set(ours.tensors) == set(theirs.tensors)
    for name in theirs.tensors:
        buffer = "correction_bias" in name
        wanted = read_tensor(theirs, name)
        assert torch.equal(read_tensor(ours, name), wanted if buffer else wanted.to(dtype)), name


@pytest.mark.parametrize("family", ["qwen2", "gpt_oss", "gemma3_text", "glm4_moe"])
def test_an_export_loads_in_transformers_like_the_original(tmp_path: Path, family: str) -> None:
    source = write_published(tmp_path / "published", family)
    out = tmp_path / "out"
    export_folder(source, out, dtype=torch.float32, max_file_bytes=30_000)
    assert (out / "model.safetensors.index.json").exists()
    assert_same_weights(out, source, torch.float32)
    for name in CARRIED:
        assert (out / name).read_bytes() == (source / name).read_bytes()
    assert not (out / "modeling_custom.py").exists()
    ids = torch.arange(5, 40).unsqueeze(0)
    with torch.no_grad():
        logits = [AutoModelForCausalLM.from_pretrained(folder)(ids).logits for folder in (out, source)]
    assert torch.equal(*logits)
    ours, theirs = (AutoTokenizer.from_pretrained(folder) for folder in (out, source))
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.special_tokens_map == theirs.special_tokens_map
    rendered = [
        tokenizer.apply_chat_template(TALK, add_generation_prompt=True, tokenize=False)
        for tokenizer in (ours, theirs)
    ]
    assert rendered[0] == rendered[1]
    assert str(rendered[0]).startswith(f"<system>rules{SPECIALS[family][1]}<user>häß <b>")
    generation = GenerationConfig.from_pretrained(out)
    assert generation.eos_token_id == GenerationConfig.from_pretrained(source).eos_token_id
    assert (generation.temperature, generation.top_k) == (0.6, 20)


@pytest.mark.parametrize("family", ["gpt_oss", "glm4_moe"])
def test_a_sharded_run_checkpoint_is_opened_and_exported(tmp_path: Path, family: str) -> None:
    """Write a run's checkpoint: the policy's files and its weights in the ranks' format."""
    source = write_published(tmp_path / "published", family)
    opened = open_model(str(source), home=tmp_path)
    with torch.no_grad():
        for parameter in opened.model.parameters():
            parameter.add_(0.25)
    checkpoint = tmp_path / "runs" / "r1" / "checkpoints" / "00001"
    checkpoint.mkdir(parents=True)
    save({"model": stored_tensors(opened.model)}, checkpoint_id=checkpoint / "shards", no_dist=True)
    write_policy_files(checkpoint, opened, {"iterations": 1})
    reopened = open_model("run:r1", home=tmp_path)
    for name, tensor in opened.model.state_dict().items():
        assert torch.equal(reopened.model.state_dict()[name], tensor), name
    assert reopened.provenance["iterations"] == 1
    projection = next(name for name in reopened.model.state_dict() if name.endswith("o_proj.weight"))
    rows = torch.cat(list(open_weights(checkpoint, opened.model).rows(projection, 3, 9)))
    assert torch.equal(rows, opened.model.get_parameter(projection)[3:9])
    out = tmp_path / "out"
    export_folder(checkpoint, out, dtype=torch.bfloat16)
    theirs = AutoModelForCausalLM.from_pretrained(out)
    assert theirs.dtype == torch.bfloat16
    for name, tensor in opened.model.state_dict().items():
        kept = "correction_bias" in name
        assert torch.equal(theirs.state_dict()[name], tensor if kept else tensor.bfloat16()), name
    for name in CARRIED:
        assert (out / name).read_bytes() == (source / name).read_bytes()
    provenance = json.loads((out / "provenance.json").read_text())
    assert (provenance["iterations"], provenance["exported_from"]) == (1, str(checkpoint))


def test_export_of_a_builtin_policy_keeps_chat_template_and_eos_token(tmp_path: Path) -> None:
    save_policy_checkpoint(tmp_path / "policy", small.model(), small.tokenizer(), {"seed": 1})
    export_folder(tmp_path / "policy", tmp_path / "out", dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = tokenizer.apply_chat_template(TALK, add_generation_prompt=True, tokenize=False)
    assert str(text).endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.eos_token == "<|im_end|>"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.generation_config.eos_token_id == small.tokenizer().im_end
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == set(small.model().state_dict())


def test_export_of_four_bit_weights_removes_the_quantization_config(tmp_path: Path) -> None:
    source = write_published(tmp_path / "published", "gpt_oss", intermediate_size=32)
    weights = {
        name: tensor for path in source.glob("*.safetensors") for name, tensor in load_file(path).items()
    }
    for name in [name for name in weights if name.endswith("_proj") and "experts" in name]:
        experts, hidden, out = weights.pop(name).shape
        weights[f"{name}_blocks"] = torch.full((experts, out, hidden // 32, 16), 0x21, dtype=torch.uint8)
        weights[f"{name}_scales"] = torch.full((experts, out, hidden // 32), 127, dtype=torch.uint8)
    for path in source.glob("model*"):
        path.unlink()
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (source / "config.json").write_text(json.dumps(config))
    opened = open_model(str(source), home=tmp_path, dtype=torch.bfloat16).model
    unpacked = opened.get_parameter("model.layers.0.mlp.experts.gate_up_proj")
    assert unpacked[0, :4, 0].tolist() == [0.5, 1.0, 0.5, 1.0]
    export_folder(source, tmp_path / "out", dtype=torch.bfloat16)
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in opened.state_dict().items())


def test_a_model_is_opened_without_reading_its_weights(tmp_path: Path) -> None:
    source = write_published(tmp_path / "published", "gemma3_text")
    opened = open_model(str(source), home=tmp_path, read=False)
    ours = open_model("builtin:quickstart", home=tmp_path, read=False)
    assert all(parameter.is_meta for parameter in opened.model.parameters())
    for ref, unread in ((str(source), opened), ("builtin:quickstart", ours)):
        assert unread.source is not None
        load_weights(unread.model, unread.model, unread.source, torch.device("cpu"))
        whole = open_model(ref, home=tmp_path)
        assert whole.source is None
        expected, loaded = whole.model.state_dict(), unread.model.state_dict()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
    next(source.glob("*-00002-*")).unlink()
    with pytest.raises(CheckpointError, match="lacks 1 of the"):
        open_model(str(source), home=tmp_path, read=False)


def test_a_damaged_checkpoint_keeps_the_previous_export(tmp_path: Path) -> None:
    source = write_published(tmp_path / "published", "qwen3")
    export_folder(source, tmp_path / "out", dtype=torch.float32)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    for path in sorted(source.glob("*.safetensors"))[:1]:
        path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match="damaged or incomplete"):
        export_folder(source, tmp_path / "out", dtype=torch.bfloat16)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "published"]


class _Command:
    """Pickle payload that runs a command when loaded."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self._command,)


def test_damaged_or_malicious_shards_of_a_run_are_refused(tmp_path: Path) -> None:
    model = open_model(str(write_published(tmp_path, "qwen3")), home=tmp_path).model
    for path in tmp_path.glob("model*"):
        path.unlink()
    shards = tmp_path / "shards"

    def write(tensors: dict[str, torch.Tensor]) -> None:
        shutil.rmtree(shards, ignore_errors=True)
        save({"model": tensors}, checkpoint_id=shards, no_dist=True)

    whole = stored_tensors(model)
    write({name: tensor for name, tensor in whole.items() if name != "model.norm.weight"})
    with pytest.raises(CheckpointError, match=r"lack 1 tensors of the model: model\.norm\.weight"):
        open_weights(tmp_path, model)
    write(whole | {"model.norm.weight": torch.ones(31)})
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight of .*shards has shape \[31\]"):
        open_weights(tmp_path, model)
    write(whole)
    weights = open_weights(tmp_path, model)
    file = max(shards.glob("*.distcp"), key=lambda path: path.stat().st_size)
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(CheckpointError, match=r"cannot read .* from .*shards"):
        load_weights(model, model, weights, torch.device("cpu"))
    write(whole)
    description = pickle.loads((shards / ".metadata").read_bytes())
    stolen = {
        index: replace(info, relative_path="../../secret") for index, info in description.storage_data.items()
    }
    (shards / ".metadata").write_bytes(pickle.dumps(replace(description, storage_data=stolen)))
    with pytest.raises(CheckpointError, match=r"names the file '\.\./\.\./secret' outside"):
        open_weights(tmp_path, model)
    ran = tmp_path / "ran"
    (shards / ".metadata").write_bytes(pickle.dumps(_Command(f"touch {ran}")))
    with pytest.raises(CheckpointError, match=r"asks for posix\.system"):
        open_weights(tmp_path, model)
    with pytest.raises(CheckpointError, match=r"asks for posix\.system"):
        stored_part(shards, "optimizer")
    assert not ran.exists()
    (shards / ".metadata").write_bytes(b"\x80nonsense")
    with pytest.raises(CheckpointError, match="no readable checkpoint of ranks"):
        open_weights(tmp_path, model)
