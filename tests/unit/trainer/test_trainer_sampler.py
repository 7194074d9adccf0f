"""Agreement of sampled and recomputed log-probabilities when trainer and sampler share weights."""

from __future__ import annotations

import asyncio
import random

import torch

from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.inference.base import GenerationContext, GenerationRequest, SamplingParams
from engine.inference.builtin.sampler import TransformerPolicy
from engine.models.chat.chatml import ChatML
from engine.tokens import TokenRecord
from engine.trainer.trainer import Trainer
from engine.types import Group, RolloutKey, TaskAnswer, TaskRow
from tests.unit.trainer.builders.rl_builders import make_group, make_task, make_trajectory
from tests.unit.trainer.builders.rl_model import VOCAB, make_model
from tests.unit.trainer.builders.rl_training_script import make_tokenizer

torch.set_num_threads(1)
TEMPERATURE = 0.7


async def rollout(policy: TransformerPolicy, seed: int) -> TokenRecord:
    """Return a record of three turns of sampled tokens, each followed by an observation."""
    rng = random.Random(seed)
    key = RolloutKey(iteration=0, phase="train", task_id="t", index=seed)
    row = TaskRow(task=make_task(), answer=TaskAnswer(gold_patch=""), split="train")
    ids, mask, logprobs = (
        [rng.randrange(VOCAB) for _ in range(5 + seed)],
        [0] * (5 + seed),
        [0.0] * (5 + seed),
    )
    for turn in range(3):
        generation = await policy.generate(
            GenerationRequest(
                prompt_ids=list(ids),
                sampling=SamplingParams(temperature=TEMPERATURE, max_tokens=4 + seed % 3),
                seed=100 * seed + turn,
                stop_ids=frozenset({0}),
                context=GenerationContext(key=key, row=row),
            )
        )
        observation = [rng.randrange(VOCAB) for _ in range(3)]
        ids += [*generation.ids, *observation]
        mask += [1] * len(generation.ids) + [0] * 3
        logprobs += [*generation.logprobs, 0.0, 0.0, 0.0]
    return TokenRecord(ids=ids, mask=mask, logprobs=logprobs)


async def collect(policy: TransformerPolicy) -> list[Group]:
    records = await asyncio.gather(*(rollout(policy, seed) for seed in range(12)))
    return [
        make_group(
            [make_trajectory(float(i % 2), index=i, tokens=records[4 * g + i]) for i in range(4)], f"t{g}"
        )
        for g in range(3)
    ]


async def test_sampled_and_recomputed_log_probabilities_agree_after_every_update() -> None:
    model = make_model()
    policy = TransformerPolicy(model, ChatML(make_tokenizer()), max_batch=8)
    config = TrainerConfig(threads=1, minibatches=3, learning_rate=0.02)
    trainer = Trainer(model, algorithm=AlgorithmConfig(), config=config, max_context=64, seed=0)
    try:
        for version in range(1, 4):
            metrics = trainer.update(await collect(policy), temperature=TEMPERATURE).metrics
            assert metrics["mismatch/max"] <= 1e-5
            assert metrics["update/steps"] == 3
            assert metrics["ratio/max"] > 1.01
            policy.set_version(version)
    finally:
        await policy.close()
