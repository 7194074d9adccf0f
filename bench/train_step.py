"""Throughput of an optimizer step in tokens per second, against TRL's GRPOTrainer on the same batch.

64 multi-turn trajectories of 350 to 650 tokens, 100 of them sampled, and the quickstart's model with the same
weights, the same objective (Dr. GRPO's constant length, so that losses and gradient norms can be compared
before anything is timed), the same optimizer, one thread each. TRL uses the best microbatch of those tried.
Repetitions alternate, and CPU seconds are reported besides wall seconds, because machines are shared.
Run: ``python -m bench.train_step [--quick] [--threads N]``; needs ``requirements/oracles.txt``.
Results go to ``bench/results/train_step.json``.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.trl_harness import Timing, against_trl, compared, write_tokenizer_settings
from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.models.builtin.transformer import Transformer
from engine.models.loader import open_model, save_policy_checkpoint
from engine.tokens import TokenRecord
from engine.trainer.trainer import Trainer
from engine.types import Group
from tests.unit.trainer.builders.rl_builders import make_group, make_trajectory

BAR = 3.0
PROMPT, SAMPLED, SIBLINGS = 220, 100, 8
CONTEXT = 1024
SETTINGS: dict[str, Any] = {"baseline": "none", "clip_high": 0.2, "filtered_reasons": ()}


def episodes(model: Transformer, count: int) -> list[Group]:
    """Return groups of siblings: a common prompt, turns of sampled tokens and observations, rewards of ±1."""
    rng = random.Random(0)
    groups = []
    for number in range(count // SIBLINGS):
        prompt = [rng.randrange(2048) for _ in range(PROMPT)]
        members = []
        for index in range(SIBLINGS):
            length = rng.randint(350, 650) - PROMPT
            mask = [0] * length
            for turn in range(4):
                start = turn * length // 4
                mask[start : start + SAMPLED // 4] = [1] * (SAMPLED // 4)
            tokens = TokenRecord(
                ids=prompt + [rng.randrange(2048) for _ in range(length)], mask=[0] * PROMPT + mask
            )
            reward = 1.0 if rng.random() < 0.5 else -1.0
            members.append(
                make_trajectory(reward, index=index, task_id=f"t{number}", tokens=recorded(model, tokens))
            )
        groups.append(make_group(members, f"t{number}"))
    return groups


@torch.no_grad()
def recorded(model: Transformer, tokens: TokenRecord) -> TokenRecord:
    """Return the record with the model's own log-probabilities."""
    ids = torch.tensor(tokens.ids)[None].long()
    table = torch.log_softmax(model(ids, torch.tensor([ids.shape[1]]))[0, :-1], dim=1)
    logprobs = table.gather(1, ids[0, 1:, None]).squeeze(1)
    return replace(tokens, logprobs=np.append(np.float32(0), logprobs.numpy() * tokens.mask[1:]))


def our_trainer(model: Transformer, threads: int) -> Trainer:
    return Trainer(
        model,
        algorithm=AlgorithmConfig(**SETTINGS),
        config=TrainerConfig(minibatches=1, learning_rate=1e-5, threads=threads),
        max_context=CONTEXT,
        seed=0,
    )


class Trl:
    """TRL's update on given trajectories, with its own loss, accumulation, clipping and optimizer step."""

    def __init__(self, folder: Path, groups: list[Group], microbatch: int) -> None:
        from datasets import Dataset
        from transformers import AutoTokenizer, Qwen3ForCausalLM
        from trl.trainer.grpo_config import GRPOConfig
        from trl.trainer.grpo_trainer import GRPOTrainer

        self.inputs = _padded(groups)
        self.microbatch = microbatch
        count = len(self.inputs["prompt_ids"])
        arguments = GRPOConfig(
            output_dir=str(folder / "trl"), per_device_train_batch_size=microbatch, num_generations=SIBLINGS,
            gradient_accumulation_steps=count // microbatch, max_completion_length=CONTEXT, beta=0.0,
            loss_type="dr_grpo", epsilon=0.2, report_to="none", use_cpu=True, bf16=False,
            gradient_checkpointing=False,
        )  # fmt: skip
        self.trainer = GRPOTrainer(
            model=Qwen3ForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
            reward_funcs=_no_reward,
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": ["x"] * count}),
            processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        )
        self.trainer.current_gradient_accumulation_steps = count // microbatch
        assert self.trainer.model is not None
        self.model = self.trainer.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, weight_decay=0.0)

    def update(self) -> tuple[float, float]:
        """Run one update; return the loss and the gradient norm before clipping."""
        loss = 0.0
        for start in range(0, len(self.inputs["prompt_ids"]), self.microbatch):
            part = {name: x[start : start + self.microbatch] for name, x in self.inputs.items()}
            part_loss = self.trainer.compute_loss(self.model, part)
            part_loss.backward()
            loss += part_loss.item()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).item()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss, norm


def _no_reward(completions: list[str], **_: Any) -> list[float | None]:
    return [0.0] * len(completions)


def _padded(groups: list[Group]) -> dict[str, Tensor]:
    """Return the batch in TRL's layout: prompts, then completions padded to the longest of the batch."""
    trajectories = [t for group in groups for t in group.trajectories]
    width = max(len(t.tokens) for t in trajectories) - PROMPT

    def completions(rows: list[list[float]], dtype: torch.dtype) -> Tensor:
        return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=dtype)

    records = [t.tokens for t in trajectories]
    prompts = torch.tensor([record.ids[:PROMPT].tolist() for record in records])
    return {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": completions([r.ids[PROMPT:].tolist() for r in records], torch.int64),
        "completion_mask": completions([[1] * (len(r) - PROMPT) for r in records], torch.int64),
        "tool_mask": completions([r.mask[PROMPT:].tolist() for r in records], torch.int64),
        "old_per_token_logps": completions([r.logprobs[PROMPT:].tolist() for r in records], torch.float32),
        "advantages": torch.tensor([t.reward or 0.0 for t in trajectories]),
    }


def measure(count: int, repeats: int, threads: int) -> dict[str, Any]:
    """Measure the trainers alternately, after one warm-up update each."""
    torch.set_num_threads(threads)
    model, tokenizer = open_model("fresh:quickstart", home=Path()).builtin()
    groups = episodes(model, count)
    tokens = sum(len(t.tokens) for group in groups for t in group.trajectories)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_policy_checkpoint(folder / "model", model, tokenizer, {})
        write_tokenizer_settings(folder / "model")
        theirs = {size: Trl(folder, groups, size) for size in (4, 8)}
        ours = our_trainer(model, threads)
        metrics = ours.update(groups, temperature=1.0).metrics
        for peer in theirs.values():
            loss, norm = peer.update()
            assert abs(norm / metrics["grad/norm"] - 1) < 1e-3, (norm, metrics["grad/norm"])
            assert abs(loss - metrics["loss/value"]) < 1e-4 * abs(loss) + 1e-7, (loss, metrics["loss/value"])
        mine, peers = Timing(), {size: Timing() for size in theirs}
        for _ in range(repeats):
            mine.add(lambda: ours.update(groups, temperature=1.0))
            for size, peer in theirs.items():
                peers[size].add(peer.update)
    return compared(mine, peers, tokens=tokens, repeats=repeats, trajectories=count, threads=threads, bar=BAR)


if __name__ == "__main__":
    against_trl("train_step", measure, trajectories=64, repeats=3, description=__doc__)
