"""Small training: ``python -m tests.unit.trainer.builders.rl_training_script RUN_DIR ITERATIONS [RANKS]``.

``RANKS THREADS LAUNCHER`` also sets the threads and the launcher of each rank. A fourth number is the
iteration after which the run waits for a line on standard input.

The run resumes from its last checkpoint and saves one after every iteration. Its training data depend on the
weights and on torch's random state, so an unrestored state changes the result.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.models.builtin.tokenizer import SPECIALS, TAGS, BpeTokenizer, train_tokenizer
from engine.models.builtin.transformer import Transformer
from engine.models.loader import open_model, save_policy_checkpoint
from engine.ray.placement import ignore
from engine.trainer.checkpoints.checkpoint import (
    load_latest,
    restore_training,
)
from engine.trainer.checkpoints.writer import CheckpointWriter
from engine.trainer.learner import Learner
from engine.trainer.processes.group import TrainerGroup
from engine.trainer.processes.rank import RankSettings
from engine.trainer.processes.start import open_launcher
from engine.trainer.trainer import Trainer
from tests.unit.trainer.builders.checkpoint_builders import snapshot_of
from tests.unit.trainer.builders.rl_model import make_groups, make_model

TOKENIZER_SIZE = 256 + len(SPECIALS) + len(TAGS)
CLOCKS = {
    "time/checkpoint", "update/seconds", "update/tokens_per_s", "update/flops_per_s",
    "update/mfu", "update/mfu_training", "update/mfu_scoring",
}  # fmt: skip


def make_tokenizer() -> BpeTokenizer:
    return train_tokenizer(["x"], vocab_size=TOKENIZER_SIZE)


def make_trainer(model: Transformer, *, threads: int = 1) -> Trainer:
    config = TrainerConfig(minibatches=2, learning_rate=1e-2, weight_decay=0.01, threads=threads)
    return Trainer(model, algorithm=AlgorithmConfig(), config=config, max_context=64, seed=3)


def make_ranks(model: Transformer, policy: Path, **ranks: Any) -> TrainerGroup:
    config = TrainerConfig(minibatches=2, learning_rate=1e-2, weight_decay=0.01, **ranks)
    settings = RankSettings(
        policy=str(policy), reference=None, home=policy, algorithm=AlgorithmConfig(), config=config,
        max_context=64, seed=3, device="cpu",
    )  # fmt: skip
    return TrainerGroup(settings, open_launcher(config, device="cpu", notice=ignore), sampler=model)


def run(
    run_dir: Path,
    iterations: int,
    ranks: int = 1,
    threads: int = 1,
    launcher: str = "local",
    held_after: int = 0,
) -> None:
    placement = {"data_parallel": ranks, "threads": threads, "launcher": launcher}
    checkpoint = load_latest(run_dir)
    history: list[dict[str, float]] = []
    if checkpoint is None:
        torch.manual_seed(11)
        model, tokenizer = make_model(vocab=TOKENIZER_SIZE), make_tokenizer()
        policy, done = run_dir / "policy", 0
        save_policy_checkpoint(policy, model, tokenizer, {})
    else:
        model, tokenizer = open_model(str(checkpoint.path), home=run_dir).builtin()
        policy, done = checkpoint.path, checkpoint.iteration
        history = list(checkpoint.cursor["history"])
    trainer: Learner = make_trainer(model) if ranks == 1 else make_ranks(model, policy, **placement)
    if checkpoint is not None:
        restore_training(checkpoint, trainer)
    writer = CheckpointWriter(run_dir, keep=2)
    for iteration in range(done, iterations):
        history.append(_iterate(model, trainer))
        writer.wait()
        snapshot = snapshot_of(
            run_dir, iteration + 1, trainer, model=model, tokenizer=tokenizer, cursor={"history": history}
        )
        writer.save(snapshot)
        if iteration + 1 == held_after:
            sys.stdin.readline()
    writer.wait()
    writer.close()
    trainer.close()


def _iterate(model: Transformer, trainer: Learner) -> dict[str, Any]:
    rewards = (torch.rand(4, 4) < 0.5).float().tolist()
    groups = make_groups(model, rewards, seed=int(torch.randint(1_000_000, (1,))))
    metrics = trainer.update(groups, temperature=1.0).metrics
    return {name: value for name, value in metrics.items() if name not in CLOCKS}


if __name__ == "__main__":
    folder, number, *options = sys.argv[1:]
    ranks, threads, launcher, pause_after = (*options, *("1", "1", "local", "0")[len(options) :])
    run(Path(folder), int(number), int(ranks), int(threads), launcher, int(pause_after))
