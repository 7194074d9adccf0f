"""Training of adapters: resumption, export, frozen base policies, and the base as the reference."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config.run import TrainRun
from engine.errors import CheckpointError
from engine.models.adapters import adapter_parameters
from engine.models.builtin.transformer import Transformer
from engine.models.frozen import freeze_policy
from engine.models.loader import open_model, save_policy_checkpoint
from engine.trainer.__main__ import main
from engine.trainer.async_trainer import AsyncTrainer
from engine.trainer.checkpoints.checkpoint import load_latest, write_snapshot
from engine.trainer.factory import TrainingSetup
from engine.trainer.trainer import Trainer
from tests.unit.models.tiny_families import write_tiny
from tests.unit.trainer.builders.rl_model import make_groups, make_model
from tests.unit.trainer.builders.rl_training_script import TOKENIZER_SIZE, make_tokenizer
from tests.unit.trainer.builders.trainer_builders import REWARDS, make_run, make_trainer

torch.set_num_threads(1)
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
LORA: dict[str, Any] = {"lora_rank": 2, "lora_targets": ("q_proj", "down_proj")}


def make_adapted(model: Transformer, objective: dict[str, Any] | None = None, **settings: Any) -> Trainer:
    return make_trainer(model, objective, **{**LORA, **settings})


def test_training_changes_only_adapters_and_the_sampler_applies_them() -> None:
    model, start = make_model(), make_model()
    trainer = make_adapted(model)
    for _ in range(2):
        metrics = trainer.update(make_groups(model, REWARDS), temperature=1.0).metrics
        assert metrics["mismatch/max"] < 1e-5
    before = dict(start.named_parameters())
    for name, parameter in model.named_parameters():
        if ".lora_" not in name:
            assert torch.equal(parameter, before[name.replace(".base_layer", "")])
    assert all(weight.abs().max() > 0 for weight in adapter_parameters(model).values())


def test_the_base_model_replaces_a_separate_reference() -> None:
    objective = {"kl": "k3", "kl_coefficient": 0.1}
    results = []
    for reference in (None, make_model()):
        model = make_model()
        trainer = make_adapted(model, objective, reference=reference)
        for _ in range(2):
            metrics = trainer.update(make_groups(make_model(), REWARDS), temperature=1.0).metrics
        results.append((metrics["kl/mean"], adapter_parameters(model)))
    (shared, ours), (separate, theirs) = results
    assert shared == separate > 0
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora_rank": 0}, "does not belong to this model: it has"),
        ({"lora_rank": 3}, "does not belong to this model: it has"),
        ({"lora_targets": ("q_proj",)}, "does not belong to this model: it has"),
        ({"lora_targets": ("q_proj", "down_proj", "up_proj")}, "cannot read the shards"),
    ],
)
def test_restoring_the_state_of_other_adapters_is_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    trainer = make_adapted(make_model())
    trainer.update(make_groups(make_model(), REWARDS), temperature=1.0)
    trainer.save(tmp_path / "shards").result()
    with pytest.raises(CheckpointError, match=message):
        make_adapted(make_model(), **settings).restore(tmp_path / "shards")


def write_run(folder: Path, policy: Path, **trainer: Any) -> TrainRun:
    settings = {"minibatches": 1, "learning_rate": 1e-2, **LORA, **trainer}
    config = make_run(policy, max_context=64, **settings)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config.model_dump_json())
    return config


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    folder = tmp_path / "policy"
    save_policy_checkpoint(folder, make_model(vocab=TOKENIZER_SIZE), make_tokenizer(), {})
    return folder


async def train(
    config: TrainRun, run_dir: Path, updates: int, *, home: Path | None = None
) -> dict[str, torch.Tensor]:
    """Resume from the last checkpoint, save one per update and return the sampler's adapters."""
    checkpoint = load_latest(run_dir)
    trainer = await AsyncTrainer.open(
        TrainingSetup.of(config), run_dir=run_dir, home=home or run_dir, checkpoint=checkpoint
    )
    done = checkpoint.iteration if checkpoint else 0
    try:
        for iteration in range(done + 1, done + updates + 1):
            groups = make_groups(make_model(vocab=TOKENIZER_SIZE), REWARDS, seed=iteration)
            await trainer.update(groups, temperature=1.0)
            snapshot = await trainer.snapshot(run_dir, iteration, cursor={}, provenance={})
            write_snapshot(snapshot)
        return {name: weight.detach().clone() for name, weight in adapter_parameters(trainer.model).items()}
    finally:
        await trainer.close()


async def test_an_adapter_run_is_resumed_and_exported(tmp_path: Path, policy: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    once, twice = tmp_path / "once", tmp_path / "twice"
    config = write_run(once, policy)
    expected = await train(config, once, 2)
    await train(write_run(twice, policy), twice, 1)
    resumed = await train(config, twice, 1)
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)

    checkpoint = once / "checkpoints" / "00002"
    assert not (checkpoint / "model.safetensors").exists()
    assert sum(path.stat().st_size for path in checkpoint.rglob("*.distcp")) < 80_000  # without the base
    assert (once / "base" / "model.safetensors").samefile(policy / "model.safetensors")  # hard link

    assert main(["export", str(once), str(tmp_path / "merged")]) == 0
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    assert main(["export", str(once), str(tmp_path / "adapters"), "--adapters"]) == 0
    ids = torch.tensor([[3, 4, 5, 6, 7]])
    base, merged = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for folder in (policy, tmp_path / "merged")
    )
    ours = open_model(str(checkpoint), home=tmp_path).model
    assert isinstance(ours, Transformer)
    assert not adapter_parameters(ours)
    with torch.no_grad():
        plain, whole, logits = base(ids).logits, merged(ids).logits, ours(ids, torch.tensor([5]))
        adapted = PeftModel.from_pretrained(base, str(tmp_path / "adapters"))(ids).logits
    assert (logits - whole).abs().max() <= 1e-5
    assert (adapted - whole).abs().max() <= 1e-5
    assert (plain - whole).abs().max() > 1e-4


async def test_adapter_export_replaces_only_earlier_exports(
    tmp_path: Path, adapted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, out = adapted.parent.parent, tmp_path / "out"
    out.mkdir()
    for options in (["--adapters"], ["--adapters"], [], ["--adapters"]):
        assert main(["export", str(run_dir), str(out), *options]) == 0
        assert (out / "adapter_config.json").exists() == bool(options)
        assert (out / "config.json").exists() != bool(options)
    (out / "notes.txt").write_text("mine")
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "adapter_config.json").write_text("{}")  # not an export
    before = sorted(tmp_path.rglob("*"))
    for target in (out, strange, adapted, run_dir):
        assert main(["export", str(run_dir), str(target), "--adapters"]) == 2
        assert f"{target} exists and is not just a policy" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture
async def adapted(tmp_path: Path, policy: Path) -> Path:
    """The checkpoint of a run that trained adapters."""
    run_dir = tmp_path / "home" / "runs" / "first"
    await train(write_run(run_dir, policy), run_dir, 1)
    return run_dir / "checkpoints" / "00001"


def change_adapters(checkpoint: Path, **changes: Any) -> None:
    path = checkpoint / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


async def test_adapters_load_no_base_outside_their_run(tmp_path: Path, policy: Path, adapted: Path) -> None:
    run_dir, lone = adapted.parent.parent, tmp_path / "lone"
    shutil.copytree(adapted, lone)
    for base in (policy, lone, "base", "../policy"):
        change_adapters(lone, base_model_name_or_path=str(base))
        with pytest.raises(
            CheckpointError, match=rf"under the adapters in {lone} is not in .*export RUN OUT"
        ):
            open_model(str(lone), home=tmp_path)
    for place in (lone, policy):
        (lone / "base").symlink_to(place)
        with pytest.raises(CheckpointError, match="no link"):
            open_model(str(lone), home=tmp_path)
        (lone / "base").unlink()
    shutil.move(run_dir, tmp_path / "moved")
    open_model(str(tmp_path / "moved" / "checkpoints" / "00001"), home=tmp_path)


@pytest.mark.parametrize("changes", [{"r": 0}, {"r": None}, {"lora_alpha": "many"}])
async def test_damaged_adapter_settings_are_reported_with_their_path(
    tmp_path: Path, adapted: Path, changes: dict[str, Any]
) -> None:
    change_adapters(adapted, **changes)
    with pytest.raises(CheckpointError, match=rf"cannot read {adapted}/adapter_config.json"):
        open_model(str(adapted), home=tmp_path)


async def test_adapters_train_on_top_of_the_adapters_of_another_run(
    tmp_path: Path, policy: Path, adapted: Path
) -> None:
    home, run_dir = tmp_path / "home", tmp_path / "second"
    config = write_run(run_dir, policy)
    config = config.model_copy(
        update={"policy": config.policy.model_copy(update={"checkpoint": "run:first"})}
    )
    start = open_model(str(adapted), home=home).model.state_dict()
    once = await train(config, run_dir, 1, home=home)
    shutil.rmtree(home)
    base = open_model(str(run_dir / "base"), home=home).model.state_dict()
    assert all(torch.equal(base[name], weight) for name, weight in start.items())
    trained = open_model(str(run_dir / "checkpoints" / "00001"), home=home).model.state_dict()
    low, high = (once[f"model.layers.0.self_attn.q_proj.lora_{x}.weight"] for x in "AB")
    name = "model.layers.0.self_attn.q_proj.weight"
    delta = trained[name] - start[name]
    assert delta.abs().max() > 0
    torch.testing.assert_close(delta, config.trainer.lora_alpha / config.trainer.lora_rank * (high @ low))
    await train(config, run_dir, 1, home=home)  # resumed without the first run


@pytest.fixture
def linkless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a file system without hard links to the policy and files too large to copy."""

    def refuse(*_: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    monkeypatch.setattr("engine.models.frozen._COPIED_BYTES", 0)


def test_a_frozen_policy_outlives_its_original(tmp_path: Path, policy: Path) -> None:
    frozen = freeze_policy(str(policy), tmp_path / "run" / "base", home=tmp_path)
    expected = open_model(str(policy), home=tmp_path).model.state_dict()
    for path in policy.iterdir():
        path.unlink()
    assert freeze_policy("gone", tmp_path / "run" / "base", home=tmp_path) == frozen
    restored = open_model(str(frozen), home=tmp_path).model.state_dict()
    assert all(torch.equal(restored[name], expected[name]) for name in expected)


def test_freeze_policy_includes_all_indexed_files_and_no_unrelated_ones(tmp_path: Path) -> None:
    policy = write_tiny(tmp_path / "published", "qwen3", chat_template=TEMPLATE, max_shard_size="20KB")
    expected = {path.name for path in policy.iterdir()}
    assert "model.safetensors.index.json" in expected
    for name in ("original/consolidated.00.pth", "checkpoints/00001/model.safetensors", "README.md", "a.pt"):
        (policy / name).parent.mkdir(parents=True, exist_ok=True)
        (policy / name).write_bytes(b"other")
    (policy / "older.safetensors").write_bytes(b"other")
    frozen = freeze_policy(str(policy), tmp_path / "run" / "base", home=tmp_path)
    frozen_files = {path.relative_to(frozen).as_posix() for path in frozen.rglob("*") if path.is_file()}
    assert frozen_files == expected | {"frozen.json"}
    assert json.loads((frozen / "frozen.json").read_text())["files"].keys() == frozen_files - {"frozen.json"}
    original, restored = (
        open_model(str(folder), home=tmp_path).model.state_dict() for folder in (policy, frozen)
    )
    assert all(torch.equal(restored[name], original[name]) for name in original)


@pytest.mark.usefixtures("linkless")
def test_freeze_policy_refuses_a_changed_or_missing_base_file(tmp_path: Path, policy: Path) -> None:
    frozen = freeze_policy(str(policy), tmp_path / "run" / "base", home=tmp_path)
    assert (frozen / "model.safetensors").is_symlink()
    freeze_policy(str(policy), frozen, home=tmp_path)
    config = json.loads((policy / "config.json").read_text())
    (policy / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1.0}))
    with pytest.raises(CheckpointError, match=r"policy/config.json has changed since the run first used"):
        freeze_policy(str(policy), frozen, home=tmp_path)
    (policy / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config.json is missing"):
        freeze_policy(str(policy), frozen, home=tmp_path)
