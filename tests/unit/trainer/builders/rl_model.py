"""A very small transformer and groups with log-probabilities recorded from it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from engine.models.builtin.architectures import TransformerConfig
from engine.models.builtin.transformer import Transformer
from engine.tokens import TokenRecord
from engine.types import Group, TerminationReason
from tests.unit.trainer.builders.rl_builders import make_group, make_trajectory, random_tokens

VOCAB = 16
CONFIG = TransformerConfig(
    vocab_size=VOCAB,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    intermediate_size=32,
)


def make_model(seed: int = 0, *, vocab: int = VOCAB) -> Transformer:
    return Transformer(replace(CONFIG, vocab_size=vocab), seed=seed)


@torch.no_grad()
def recorded(model: Transformer, tokens: TokenRecord, temperature: float = 1.0) -> TokenRecord:
    """Return the tokens with the log-probabilities recorded by a sampler with these weights."""
    ids = torch.tensor(tokens.ids)[None].long()
    logits = model(ids, torch.tensor([len(tokens)]))[0]
    table = torch.log_softmax(logits / temperature, dim=-1)
    logprobs = table[:-1].gather(1, ids[0, 1:, None]).squeeze(1).numpy()
    return replace(tokens, logprobs=np.append(np.float32(0), np.where(tokens.mask[1:], logprobs, 0.0)))


def make_groups(
    model: Transformer,
    rewards: Sequence[Sequence[float | None]],
    *,
    seed: int = 0,
    temperature: float = 1.0,
    terminations: dict[tuple[int, int], TerminationReason] | None = None,
) -> list[Group]:
    """Return one group per row of rewards, with random lengths and contents."""
    rng = random.Random(seed)
    groups = []
    for g, row in enumerate(rewards):
        trajectories = [
            make_trajectory(
                reward,
                (terminations or {}).get((g, i), TerminationReason.SUBMITTED),
                index=i,
                task_id=f"t{g}",
                tokens=recorded(
                    model, random_tokens(rng, vocab=VOCAB, length=rng.randint(5, 40)), temperature
                ),
            )
            for i, reward in enumerate(row)
        ]
        groups.append(make_group(trajectories, f"t{g}"))
    return groups
