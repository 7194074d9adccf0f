"""Checkpoints: atomic writes, verification, retention and exact resumption."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from engine.errors import CheckpointError
from engine.evaluation.metrics import EvaluationSummary
from engine.models.loader import open_model
from engine.orchestrator.training.progress import HELDOUT, TRAIN, TrainProgress
from engine.trainer.checkpoints.checkpoint import (
    Checkpoint,
    _remove_leftovers,
    load_latest,
    prune,
    read_checkpoint,
    restore_training,
    write_snapshot,
)
from engine.trainer.checkpoints.writer import CheckpointWriter
from tests.unit.trainer.builders.checkpoint_builders import snapshot_of, stored_state
from tests.unit.trainer.builders.rl_model import make_groups, make_model
from tests.unit.trainer.builders.rl_training_script import TOKENIZER_SIZE, make_tokenizer, make_trainer, run

torch.set_num_threads(1)
MODEL = make_model(vocab=TOKENIZER_SIZE)
TOKENIZER = make_tokenizer()


def save(run_dir: Path, iteration: int, **cursor: Any) -> Checkpoint:
    trainer = make_trainer(MODEL)
    written: dict[str, Any] = {"model": MODEL, "tokenizer": TOKENIZER, "provenance": {"made_by": "test"}}
    try:
        return write_snapshot(snapshot_of(run_dir, iteration, trainer, cursor=cursor, **written))
    finally:
        trainer.close()


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def final_state(run_dir: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any], Any]:
    """Return the stored tensors, the other training state and the metrics of every iteration."""
    checkpoint = load_latest(run_dir)
    assert checkpoint is not None
    state = torch.load(checkpoint.path / "training.pt", weights_only=True)
    stored = stored_state(checkpoint.path)
    assert {"model.model.norm.weight", "optimizer.model.norm.weight.exp_avg_sq"} <= set(stored)
    return stored, state, checkpoint.cursor["history"]


def assert_same_end(a: Path, b: Path) -> None:
    (weights, state, history), (other_weights, other_state, other_history) = final_state(a), final_state(b)
    torch.testing.assert_close(weights, other_weights, rtol=0, atol=0)
    assert history == other_history
    torch.testing.assert_close(state, other_state, rtol=0, atol=0)


def test_a_run_resumed_after_three_updates_equals_six_uninterrupted_updates(tmp_path: Path) -> None:
    run(tmp_path / "whole", 6)
    run(tmp_path / "parts", 3)
    torch.manual_seed(999)
    random.seed(999)  # training never uses this random state
    run(tmp_path / "parts", 6)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")
    history = final_state(tmp_path / "whole")[2]
    assert len({metrics["loss/value"] for metrics in history}) == 6


def test_a_checkpoint_is_a_policy_folder_with_exact_weights(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 7, epoch=2)
    assert checkpoint.path == tmp_path / "checkpoints" / "00007"
    assert names(tmp_path) == ["00007"]
    model, tokenizer = open_model(str(checkpoint.path), home=tmp_path).builtin()
    for name, tensor in MODEL.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)
    assert tokenizer.encode("a = 1") == TOKENIZER.encode("a = 1")
    assert load_latest(tmp_path) == checkpoint
    assert checkpoint.cursor == {"epoch": 2}
    assert json.loads((checkpoint.path / "provenance.json").read_text()) == {"made_by": "test"}


def rewrite(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


truncate = rewrite("training.pt", lambda data: data[:-1])
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "torn": (truncate, "training.pt is not the file"),
    "bit rot": (
        rewrite("shards/__0_0.distcp", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
        "__0_0.distcp is not the file",
    ),
    "edited cursor": (rewrite("cursor.json", lambda _: b'{"n": 99}\n'), "cursor.json is not the file"),
    "edited manifest": (
        rewrite("manifest.json", lambda data: data.replace(b'"iteration": 2', b'"iteration": 3')),
        "its own checksum",
    ),
    "missing file": (
        lambda folder: (folder / "tokenizer.json").unlink(),
        "missing or extra files: tokenizer.json",
    ),
    "extra file": (lambda folder: (folder / "more").write_text("x"), "missing or extra files: more"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "no readable manifest.json"),
    "another manifest": (rewrite("manifest.json", lambda _: b"[]"), "no readable manifest.json"),
    "another format": (
        rewrite("manifest.json", lambda data: data.replace(b'"format": 2', b'"format": 3')), "format 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_load_latest_logs_a_damaged_checkpoint_and_uses_the_previous_one(kind: str, tmp_path: Path) -> None:
    damage, message = DAMAGE[kind]
    first, second = save(tmp_path, 1, n=1), save(tmp_path, 2, n=2)
    damage(second.path)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(second.path)
    with capture_logs() as logs:
        assert load_latest(tmp_path) == first
    assert [(entry["event"], entry["path"]) for entry in logs] == [("checkpoint.damaged", str(second.path))]


def test_a_checkpoint_of_an_earlier_format_cannot_restore_training(tmp_path: Path) -> None:
    written = save(tmp_path, 1)
    manifest = json.loads((written.path / "manifest.json").read_text())
    del manifest["checksum"]
    manifest["format"] = 1
    checksum = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (written.path / "manifest.json").write_text(json.dumps({**manifest, "checksum": checksum}))
    checkpoint = load_latest(tmp_path)
    assert checkpoint is not None
    with pytest.raises(CheckpointError, match="earlier version"):
        restore_training(checkpoint, make_trainer(MODEL))


def test_load_latest_fails_if_every_checkpoint_is_damaged(tmp_path: Path) -> None:
    assert load_latest(tmp_path) is None
    truncate(save(tmp_path, 1).path)
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
        load_latest(tmp_path)


def test_saving_removes_incomplete_folders_and_replaces_the_same_iteration(tmp_path: Path) -> None:
    save(tmp_path, 1, attempt=1)
    leftover = tmp_path / "checkpoints" / ".saving-00002"
    leftover.mkdir()
    (leftover / "model.safetensors").write_text("torn")
    latest = load_latest(tmp_path)
    assert latest is not None
    assert latest.iteration == 1
    save(tmp_path, 1, attempt=2)
    assert names(tmp_path) == ["00001"]
    latest = load_latest(tmp_path)
    assert latest is not None
    assert latest.cursor == {"attempt": 2}


def test_a_kill_while_a_checkpoint_is_replaced_leaves_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def killed(path: Path, target: Path) -> None:
        rename(path, target)
        raise KeyboardInterrupt

    save(tmp_path, 1)
    snapshot = snapshot_of(tmp_path, 1, make_trainer(MODEL), model=MODEL, tokenizer=TOKENIZER)
    snapshot.shards.result()
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(Path, "rename", killed)
        write_snapshot(snapshot)
    save(tmp_path, 2)
    assert names(tmp_path) == ["00001", "00002"]


def test_pruning_keeps_the_last_complete_checkpoints(tmp_path: Path) -> None:
    for iteration in (8, 9, 10, 11):
        save(tmp_path, iteration)
    (tmp_path / "checkpoints" / "00011" / "manifest.json").unlink()
    assert [path.name for path in prune(tmp_path, keep=2)] == ["00008"]
    assert names(tmp_path) == ["00009", "00010", "00011"]
    assert prune(tmp_path, keep=2) == []
    assert prune(tmp_path / "nothing", keep=1) == []


def test_checkpoints_are_ordered_by_number(tmp_path: Path) -> None:
    for iteration in (99_998, 99_999, 100_000):
        save(tmp_path, iteration)
    latest = load_latest(tmp_path)
    assert latest is not None
    assert latest.iteration == 100_000
    scores = {99_998: 0.5, 99_999: 0.5}
    assert [path.name for path in prune(tmp_path, keep=1, keep_best=1, scores=scores)] == ["99998"]
    assert [path.name for path in prune(tmp_path, keep=1)] == ["99999"]


def test_restoring_the_state_of_another_model_is_refused(tmp_path: Path) -> None:
    other = make_model()
    trainer = make_trainer(other)
    trainer.update(make_groups(other, [[1.0, 0.0]]), temperature=1.0)
    checkpoint = write_snapshot(snapshot_of(tmp_path, 1, trainer, model=other, tokenizer=TOKENIZER))
    with pytest.raises(CheckpointError, match="does not belong to this model"):
        restore_training(checkpoint, make_trainer(MODEL))


def test_a_cursor_that_is_not_json_writes_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        save(tmp_path, 1, reward=float("nan"))
    assert load_latest(tmp_path) is None
    save(tmp_path, 1)
    assert names(tmp_path) == ["00001"]


def summary(rate: float) -> EvaluationSummary:
    return EvaluationSummary(
        num_samples=1, num_tasks=1, num_solved=0, solve_rate=rate,
        interval_low=0.0, interval_high=1.0, num_infrastructure=0,
    )  # fmt: skip


def test_writer_keeps_the_best_and_the_last_checkpoint(tmp_path: Path) -> None:
    scores: dict[int, float | None] = {1: 0.2, 2: 0.9, 3: None, 4: 0.9, 5: 0.4, 6: 0.95}
    writer, progress = CheckpointWriter(tmp_path, keep=1, keep_best=1), TrainProgress()
    trainer, kept = make_trainer(MODEL), []
    for iteration, score in scores.items():
        writer.save(
            snapshot_of(tmp_path, iteration, trainer, model=MODEL, tokenizer=TOKENIZER), progress.scores
        )
        writer.wait()
        kept.append(names(tmp_path)[0])
        progress.iteration = iteration
        if score is not None:
            progress.add_evaluation(HELDOUT, summary(score))
            progress.add_evaluation(TRAIN, summary(1 - score))
    assert kept == ["00001", "00001", "00002", "00002", "00004", "00004"]
    writer.prune(progress.scores)
    writer.close()
    trainer.close()
    assert names(tmp_path) == ["00006"]


def test_a_checkpoint_stores_the_weights_at_snapshot_time(tmp_path: Path) -> None:
    model = make_model(vocab=TOKENIZER_SIZE)
    trainer = make_trainer(model)
    writer = CheckpointWriter(tmp_path, keep=1)
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    snapshot = snapshot_of(tmp_path, 1, trainer, model=model, tokenizer=TOKENIZER)
    trainer.update(make_groups(model, [[1.0, 0.0]]), temperature=1.0)
    writer.save(snapshot)
    written = writer.wait()
    writer.close()
    assert written is not None
    loaded, _ = open_model(str(written.path), home=tmp_path).builtin()
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in expected.items())
    assert torch.load(written.path / "training.pt", weights_only=True)["trainer"]["updates"] == 0


def test_write_errors_are_raised_by_the_next_wait(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, keep=1)
    snapshot = snapshot_of(tmp_path, 1, make_trainer(MODEL), model=MODEL, tokenizer=TOKENIZER)
    snapshot.shards.result()
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").write_text("in the way")
    writer.save(snapshot)
    with pytest.raises(OSError):
        writer.wait()
    writer.close()
    assert writer.finished() is None


def test_a_checkpoint_that_a_killed_replacement_set_aside_is_put_back(tmp_path: Path) -> None:
    """As ``replace_folder`` leaves it on file systems that cannot exchange folders."""
    for name in (".00005-old-x/old", ".00006-old-y/old", "00006", ".saving-00005"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".00005-old-x/old/manifest.json").write_text("{}")
    _remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00005", "00006"]
    assert (tmp_path / "00005" / "manifest.json").exists()
