"""Export of checkpoints to folders that transformers can load."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from engine.trainer.__main__ import main
from engine.trainer.checkpoints.checkpoint import write_snapshot
from tests.unit.trainer.builders.checkpoint_builders import snapshot_of
from tests.unit.trainer.builders.rl_model import make_model
from tests.unit.trainer.builders.rl_training_script import TOKENIZER_SIZE, make_tokenizer, make_trainer

torch.set_num_threads(1)
MODEL = make_model(vocab=TOKENIZER_SIZE)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    for iteration in (1, 2):
        trainer = make_trainer(MODEL)
        write_snapshot(snapshot_of(folder, iteration, trainer, model=MODEL, tokenizer=make_tokenizer()))
        trainer.close()
    return folder


@pytest.mark.parametrize(
    ("dtype", "bound", "source"), [("float32", 1e-5, "checkpoints/00001"), ("bfloat16", 0.05, "")]
)
def test_exported_policies_load_in_transformers_with_equal_logits(
    run_dir: Path, tmp_path: Path, dtype: str, bound: float, source: str
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "out"
    assert main(["export", str(run_dir / source), str(out), "--dtype", dtype]) == 0
    theirs = AutoModelForCausalLM.from_pretrained(out)
    assert theirs.dtype == getattr(torch, dtype)
    text = "def f(a):\n    return a + 1\n"
    ids = make_tokenizer().encode(text)
    assert AutoTokenizer.from_pretrained(out)(text)["input_ids"] == ids
    with torch.no_grad():
        ours = MODEL(torch.tensor([ids]), torch.tensor([len(ids)]))
        assert (theirs(torch.tensor([ids])).logits.float() - ours).abs().max() <= bound


def test_export_needs_a_checkpoint_and_adapters_if_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run_dir: Path
) -> None:
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    for source, options, message in (
        (tmp_path / "empty", [], "run empty has no checkpoint yet"),
        (tmp_path / "empty", ["--adapters"], "run empty has no checkpoint yet"),
        (tmp_path / "nowhere", [], f"there is no model folder {tmp_path / 'nowhere'}"),
        (run_dir, ["--adapters"], "00002 has no adapters: trainer.lora_rank was 0"),
    ):
        assert main(["export", str(source), str(tmp_path / "out"), *options]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ["notes.txt", "config.json", "run", "file", "link"])
def test_export_refuses_to_replace_anything_but_a_policy_folder(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    out = tmp_path / "out"
    match content:
        case "run":
            shutil.copytree(run_dir, out)
            for name in ("config.json", "provenance.json"):
                shutil.copy(run_dir / "checkpoints" / "00001" / name, out)
        case "file":
            out.write_text("mine")
        case "link":
            (tmp_path / "empty").mkdir()
            out.symlink_to(tmp_path / "empty")
        case name:
            out.mkdir()
            (out / name).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert main(["export", str(run_dir), str(out)]) == 2
    assert f"{out} exists and is not just a policy" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_an_export_can_be_read_while_it_is_replaced(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, remove, complete = tmp_path / "out", shutil.rmtree, list[bool]()
    assert main(["export", str(run_dir), str(out)]) == 0

    def remove_and_read(path: Path, *, ignore_errors: bool = False) -> None:
        remove(path, ignore_errors=ignore_errors)
        complete.append((out / "config.json").exists())

    monkeypatch.setattr(shutil, "rmtree", remove_and_read)
    assert main(["export", str(run_dir), str(out), "--dtype", "bfloat16"]) == 0
    assert all(complete)
    assert complete


def test_export_replaces_an_empty_folder_and_an_earlier_export(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert main(["export", str(run_dir), str(out)]) == 0
    size = (out / "model.safetensors").stat().st_size
    assert main(["export", str(run_dir), str(out), "--dtype", "bfloat16"]) == 0
    assert (out / "model.safetensors").stat().st_size < size
