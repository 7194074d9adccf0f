"""Throughput of supervised fine-tuning in tokens per second, against TRL's SFTTrainer on the same batch.

Multi-turn trajectories of 350 to 650 tokens of different tasks, 100 tokens of each sampled, and the model of
the quickstart with the same weights, loss on the same tokens (loss and gradient norm are compared before
anything is timed), AdamW, one thread each. TRL uses the best microbatch of those tried. Repetitions
alternate, and CPU seconds are reported besides wall seconds, because machines are shared.
Run: ``python -m bench.sft [--quick] [--threads N]``; needs ``requirements/oracles.txt``.
Results go to ``bench/results/sft.json``.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import torch

from bench.trl_harness import Timing, against_trl, compared, write_tokenizer_settings
from engine.config.learning.fine_tuning import FineTuningConfig
from engine.models.loader import open_model, save_policy_checkpoint
from engine.tokens import TokenRecord
from engine.trainer.batch import IMITATION
from engine.trainer.trainer import Trainer

BAR = 1.5
PROMPT, SAMPLED, TURNS = 220, 100, 4
RATE = 1e-5


def records(count: int) -> list[TokenRecord]:
    """Return trajectories of different tasks: a prompt, then turns of sampled tokens and observations."""
    rng = random.Random(0)
    trajectories = []
    for _ in range(count):
        length = rng.randint(350, 650)
        mask = [0] * length
        for turn in range(TURNS):
            start = PROMPT + turn * (length - PROMPT) // TURNS
            mask[start : start + SAMPLED // TURNS] = [1] * (SAMPLED // TURNS)
        trajectories.append(TokenRecord(ids=[rng.randrange(2048) for _ in range(length)], mask=mask))
    return trajectories


class Trl:
    """TRL's optimizer step on given sequences, with its own collator, loss and accumulation."""

    def __init__(self, folder: Path, batch: list[TokenRecord], microbatch: int) -> None:
        from datasets import Dataset
        from transformers import AutoTokenizer, Qwen3ForCausalLM
        from trl.trainer.sft_config import SFTConfig
        from trl.trainer.sft_trainer import SFTTrainer

        rows = [
            {"input_ids": record.ids.tolist(), "assistant_masks": record.mask.astype(int).tolist()}
            for record in batch
        ]
        arguments = SFTConfig(
            output_dir=str(folder / "trl"), per_device_train_batch_size=microbatch, report_to="none",
            gradient_accumulation_steps=len(batch) // microbatch, use_cpu=True, bf16=False, max_length=None,
            gradient_checkpointing=False, weight_decay=0.0,
        )  # fmt: skip
        self.trainer = SFTTrainer(
            model=Qwen3ForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
            args=arguments,
            train_dataset=Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        )
        assert self.trainer.train_dataset is not None
        self.rows = list(self.trainer.train_dataset)
        self.microbatch = microbatch
        self.sampled = torch.tensor(sum(record.num_sampled for record in batch))
        self.model = self.trainer.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, weight_decay=0.0)

    def step(self) -> tuple[float, float]:
        """Make one optimizer step; return the loss and the gradient norm before clipping."""
        loss = 0.0
        for start in range(0, len(self.rows), self.microbatch):
            part = self.trainer.data_collator(self.rows[start : start + self.microbatch])
            part_loss = self.trainer.compute_loss(self.model, part, num_items_in_batch=self.sampled)
            part_loss.backward()
            loss += part_loss.item()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).item()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss, norm


def measure(count: int, repeats: int, threads: int) -> dict[str, Any]:
    """Measure the trainers alternately, after one warm-up step each."""
    torch.set_num_threads(threads)
    model, tokenizer = open_model("fresh:quickstart", home=Path()).builtin()
    batch = records(count)
    tokens = sum(len(record) for record in batch)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_policy_checkpoint(folder / "model", model, tokenizer, {})
        write_tokenizer_settings(folder / "model")
        theirs = {size: Trl(folder, batch, size) for size in (2, 4, 8)}
        config = FineTuningConfig(learning_rate=RATE, threads=threads).trainer(repeats + 1)
        ours = Trainer(model, algorithm=IMITATION, config=config, max_context=1024, seed=0)
        metrics = ours.imitate(batch, rate=RATE)
        for peer in theirs.values():
            loss, norm = peer.step()
            assert abs(norm / metrics["grad/norm"] - 1) < 1e-3, (norm, metrics["grad/norm"])
            assert abs(loss - metrics["loss/value"]) < 1e-3, (loss, metrics["loss/value"])
        mine, peers = Timing(), {size: Timing() for size in theirs}
        for _ in range(repeats):
            mine.add(lambda: ours.imitate(batch, rate=RATE))
            for size, peer in theirs.items():
                peers[size].add(peer.step)
    return compared(mine, peers, tokens=tokens, repeats=repeats, trajectories=count, threads=threads, bar=BAR)


if __name__ == "__main__":
    against_trl("sft", measure, trajectories=32, repeats=5, description=__doc__)
