"""Loading of models: position encodings, refused and damaged folders, references, hub downloads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import huggingface_hub.errors
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.config.access.downloads import HubLimits
from engine.errors import CheckpointError, PreflightError
from engine.models import hub
from engine.models.attention import Segments
from engine.models.builtin.architectures import SHIPPED
from engine.models.builtin.transformer import Transformer
from engine.models.loader import open_model
from engine.models.published.pretrained import PretrainedModel
from tests.fakes.hub import fake_hub
from tests.unit.models.tiny_families import write_tiny

CPU = torch.device("cpu")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
ROTARY: Mapping[str, dict[str, Any]] = {
    "yarn": {"rope_parameters": {**YARN, "rope_theta": 10_000.0}},
    "yarn, old names": {"rope_theta": 10_000.0, "rope_scaling": YARN},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}},
    "llama3": {
        "rope_theta": 10_000.0,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "another theta": {"rope_theta": 500.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Qwen3 for 128 tokens with default position encodings and position-sensitive weights."""
    folder = tmp_path_factory.mktemp("plain")
    return write_tiny(folder, "qwen3", seed=5, max_position_embeddings=128, initializer_range=0.4)


def edited(folder: Path, to: Path, **changes: Any) -> Path:
    """Link a folder's files with a changed ``config.json``; None removes a key."""
    to.mkdir(parents=True)
    for path in folder.iterdir():
        (to / path.name).symlink_to(path)
    config = json.loads((folder / "config.json").read_text()) | changes
    (to / "config.json").unlink()
    (to / "config.json").write_text(
        json.dumps({key: value for key, value in config.items() if value is not None})
    )
    return to


def hidden_of(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    model = open_model(str(folder), home=folder).model
    with torch.no_grad():
        return model.packed_hidden(ids, Segments.whole([len(ids)], CPU))


@pytest.mark.parametrize(
    "file",
    [
        "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
        "generation_config.json", "provenance.json", "chat_template.jinja", "model.safetensors",
    ],
)  # fmt: skip
def test_a_fifo_in_a_model_folder_is_refused_without_blocking(plain: Path, tmp_path: Path, file: str) -> None:
    folder = edited(plain, tmp_path / "model")
    (folder / file).unlink(missing_ok=True)
    os.mkfifo(folder / file)
    with pytest.raises(CheckpointError, match=f"{file}.*not a regular file"):
        open_model(str(folder), home=tmp_path).chat()


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "provenance.json"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [("[" * 100_000, "nested more than 100 levels deep"), ("[" + "[]," * 500_000 + "1]", "values|MiB")],
    ids=["deep", "many"],
)
def test_deeply_nested_or_huge_settings_files_are_refused(
    plain: Path, tmp_path: Path, file: str, content: str, reason: str
) -> None:
    folder = edited(plain, tmp_path / "model")
    (folder / file).unlink(missing_ok=True)
    (folder / file).write_text(content)
    with pytest.raises(CheckpointError, match=f"{file}.*({reason})"):
        open_model(str(folder), home=tmp_path).chat()


def test_a_model_with_a_million_layers_is_refused(plain: Path, tmp_path: Path) -> None:
    folder = edited(plain, tmp_path / "model", num_hidden_layers=1_000_000)
    with pytest.raises(CheckpointError, match="num_hidden_layers 1000000"):
        open_model(str(folder), home=tmp_path)


@pytest.mark.parametrize("name", ROTARY)
def test_scaled_position_encodings_match_transformers(plain: Path, tmp_path: Path, name: str) -> None:
    folder = edited(plain, tmp_path / "scaled", **{"rope_parameters": None, **ROTARY[name]})
    ids = torch.randint(5, 300, (100,), generator=torch.Generator().manual_seed(1))
    ours = hidden_of(folder, ids)
    theirs = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        expected = theirs.model(ids[None]).last_hidden_state[0]
    assert (ours - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert (ours - hidden_of(plain, ids))[40:].abs().max() > 1e-2 * expected.abs().max()


def test_yarn_extends_the_context(plain: Path, tmp_path: Path) -> None:
    assert open_model(str(plain), home=tmp_path).model.max_context == 128
    longer = {"rope_parameters": {**YARN, "rope_theta": 10_000.0, "original_max_position_embeddings": 128}}
    extended = str(edited(plain, tmp_path / "yarn", **longer))
    assert open_model(extended, home=tmp_path, max_context=512).model.max_context == 512
    with pytest.raises(CheckpointError, match=r"agent\.max_context is 513 tokens.*at most 512: lower"):
        open_model(extended, home=tmp_path, max_context=513)


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_position_encodings_that_depend_on_the_longest_sequence_are_refused(
    plain: Path, tmp_path: Path, rope_type: str
) -> None:
    rope = {
        "rope_type": rope_type, "rope_theta": 10_000.0, "factor": 2.0, "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4, "original_max_position_embeddings": 32,
    }  # fmt: skip
    folder = edited(plain, tmp_path / "scaled", rope_parameters=rope)
    with pytest.raises(CheckpointError, match=f"rope_type '{rope_type}'.*set rope_parameters"):
        open_model(str(folder), home=tmp_path)


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"model_type": "nonesuch"}, "nonesuch"),
    "recurrent": ({"model_type": "mamba"}, "carries a recurrent state"),
    "hybrid": ({"model_type": "qwen3_next"}, "carries a recurrent state"),
    "convolutions": (
        {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}, "has layers of type 'conv'",
    ),
    "encoder and decoder": ({"model_type": "bart"}, "is an encoder-decoder"),
    "images": ({"model_type": "gemma3"}, "take the text-only variant"),
    "no language model": ({"model_type": "vit"}, "is not one of transformers' causal language models"),
    "masks of its own": ({"model_type": "doge"}, "cannot run over packed rows"),
    "chunks": ({"model_type": "llama4_text"}, "has layers of type 'chunked_attention'"),
    "windows only in masks": (
        {"model_type": "phimoe", "sliding_window": 5, "num_key_value_heads": 4}, "but passes None on",
    ),
    "masks only": ({"model_type": "nemotron", "num_key_value_heads": 4}, "argument: 'segments'"),
    "a layer before the output": (
        {"model_type": "modernbert-decoder", "decoder_bias": False}, "between its layers and its output",
    ),
    "old code": ({"model_type": "gptj"}, "does not support another attention implementation"),
    "biased output": ({"model_type": "phi"}, "has a bias in its output layer"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_untrainable_models_are_refused_with_the_reason(plain: Path, tmp_path: Path, kind: str) -> None:
    changes, reason = REFUSED[kind]
    config = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 320}
    config |= {"pad_token_id": 0}
    folder = edited(plain, tmp_path / kind)
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(CheckpointError, match=reason):
        open_model(str(folder), home=tmp_path)


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "small", "qwen3", vocab_size=200)
    with pytest.raises(CheckpointError, match=r"the tokenizer has 267 tokens, the model only 200"):
        open_model(str(folder), home=tmp_path)


DAMAGED: Mapping[str, tuple[str, str, str]] = {
    "empty tokenizer": ("tokenizer.json", "{}", "cannot read the tokenizer in .*KeyError"),
    "list": ("tokenizer_config.json", "[]", "cannot read the tokenizer in .*AttributeError"),
    "impossible sizes": (
        "config.json",
        '"num_attention_heads": 0',
        "cannot read the model in .*ZeroDivision",
    ),
    "layers": ("config.json", '"num_hidden_layers": 3', r"cannot read the model in .*must be equal to the"),
    "end of text": ("generation_config.json", '{"eos_token_id": {"a": 1}}', "expected a token's id"),
    "template": ("chat_template.jinja", "{% for %}", "the chat template in .* TemplateSyntaxError"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_model_files_are_refused_with_the_reason(plain: Path, tmp_path: Path, kind: str) -> None:
    name, content, reason = DAMAGED[kind]
    folder = edited(plain, tmp_path / "damaged")
    if name == "config.json":
        content = json.dumps(json.loads((folder / name).read_text()) | json.loads(f"{{{content}}}"))
    (folder / name).unlink(missing_ok=True)  # maybe a link
    (folder / name).write_text(content)
    with pytest.raises(CheckpointError, match=rf"(?s){reason}"):
        open_model(str(folder), home=tmp_path).chat()


def test_a_folder_with_only_a_configuration_gets_random_weights(plain: Path, tmp_path: Path) -> None:
    folder = edited(plain, tmp_path / "bare")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="has no weights"):
        open_model(str(folder), home=tmp_path)
    opened = open_model(f"fresh:{folder}", home=tmp_path)
    assert isinstance(opened.model, PretrainedModel)
    assert opened.model.head.weight.std() > 0.1
    with pytest.raises(CheckpointError, match="neither a built-in architecture"):
        open_model("fresh:nonesuch", home=tmp_path)


def test_code_in_a_model_folder_never_runs(plain: Path, tmp_path: Path) -> None:
    code = {"AutoConfig": "code.Own", "AutoModelForCausalLM": "code.Own"}
    unknown = edited(plain, tmp_path / "unknown", model_type="own", auto_map=code)
    known = edited(plain, tmp_path / "known", auto_map=code)
    for folder in (unknown, known):
        (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(CheckpointError, match="contains custom code"):
        open_model(str(unknown), home=tmp_path)
    assert open_model(str(known), home=tmp_path).model.family == "qwen3"
    assert not (tmp_path / "ran").exists()


def test_only_builtin_policies_open_as_builtin_transformers(plain: Path, tmp_path: Path) -> None:
    assert isinstance(open_model("builtin:quickstart", home=tmp_path).model, Transformer)
    assert open_model("fresh:tiny", home=tmp_path).folder is None
    stored = open_model("builtin:quickstart", home=tmp_path).model.head.weight
    fresh = open_model(f"fresh:{SHIPPED / 'quickstart'}", home=tmp_path).model
    assert isinstance(fresh, Transformer)
    assert not torch.equal(fresh.head.weight, stored)
    with pytest.raises(CheckpointError, match="family 'qwen3', but this needs a built-in policy"):
        open_model(str(plain), home=tmp_path).builtin()


def cached(cache: Path, plain: Path, name: str) -> Path:
    """Write a model in the layout of the hub's cache."""
    root = cache / f"models--{name.replace('/', '--')}"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text("0" * 40)
    (root / "snapshots").mkdir()
    return edited(plain, root / "snapshots" / ("0" * 40))


def test_hub_models_are_opened_from_the_cache_when_offline(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    snapshot = cached(tmp_path / "hub", plain, "Some/Model")
    opened = open_model("Some/Model", home=tmp_path)
    assert opened.folder == snapshot
    assert isinstance(opened.model, PretrainedModel)
    assert hub.fetch_model("Some/Model@main") == snapshot
    with pytest.raises(PreflightError, match=r"HF_HUB_OFFLINE.*`hf download Some/Other`"):
        open_model("Some/Other", home=tmp_path)
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(PreflightError, match=r"not \(completely\) in the cache"):
        open_model("Some/Model", home=tmp_path)
    with pytest.raises(CheckpointError):
        open_model("Some/Model/etc", home=tmp_path)


def test_model_downloads_respect_the_configured_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens: list[bool | None] = []

    def snapshot_download(_name: str, *, local_files_only: bool, token: bool | None, **_: Any) -> str:
        if local_files_only:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not here")
        tokens.append(token)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    files = {"config.json": b"{}", "model.safetensors": b"x" * 1_000, "pytorch_model.bin": b"x" * 5_000}
    with fake_hub("Some/Model", files, kind="models") as running:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", running.url)
        limits = HubLimits(max_gb=2e-6, token_models=("Other/*",))
        monkeypatch.setenv("TRAINYARD_HUB_LIMITS", limits.model_dump_json())
        assert hub.fetch_model("Some/Model") == tmp_path
        monkeypatch.setenv("TRAINYARD_HUB_LIMITS", HubLimits(token_models=("Some/*",)).model_dump_json())
        with monkeypatch.context() as without_limit:
            without_limit.setattr(huggingface_hub, "HfApi", None)  # without a limit, no size is requested
            hub.fetch_model("Some/Model")
        assert tokens == [False, None]
        monkeypatch.setenv("TRAINYARD_HUB_LIMITS", HubLimits(max_gb=1e-6).model_dump_json())
        with pytest.raises(CheckpointError, match="'Some/Model' needs a download of .* downloads.max_gb"):
            hub.fetch_model("Some/Model")


@pytest.mark.parametrize("content", ["[]", "no JSON", '{"weight_map": {"a": 3}}'])
def test_a_damaged_index_in_the_hub_cache_is_refused(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    index = cached(tmp_path / "hub", plain, "Some/Model") / "model.safetensors.index.json"
    index.write_text(content)
    with pytest.raises(CheckpointError, match=str(index)):
        hub.fetch_model("Some/Model")
