"""Small models, a quickly trained tokenizer, and requests for them."""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Sequence

import torch

from engine.inference.base import Generation, GenerationContext, GenerationRequest, SamplingParams
from engine.models.attention import Segments
from engine.models.base import LanguageModel, logits_of
from engine.models.builtin.architectures import TransformerConfig
from engine.models.builtin.tokenizer import BpeTokenizer, train_tokenizer
from engine.models.builtin.transformer import Transformer
from engine.types import RolloutKey, Task, TaskAnswer, TaskRow

VOCAB = 400
CONFIG = TransformerConfig(
    vocab_size=VOCAB,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    intermediate_size=48,
    max_position_embeddings=256,
)


@functools.cache
def tokenizer() -> BpeTokenizer:
    return train_tokenizer([inspect.getsource(textwrap), inspect.getsource(functools)], vocab_size=VOCAB)


def model(seed: int = 0) -> Transformer:
    torch.set_num_threads(1)
    net = Transformer(CONFIG, seed=seed)
    with torch.no_grad():  # sharper than fresh weights, to expose wrong positions or cache entries
        net.model.embed_tokens.weight.mul_(20)
    return net


def request(
    prompt: Sequence[int],
    *,
    seed: int = 0,
    max_tokens: int = 24,
    stop: int = 2,
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> GenerationRequest:
    task = Task(id="0" * 16, instance_id="t", repo="", base_commit="", problem_statement="", image="")
    context = GenerationContext(
        key=RolloutKey(iteration=0, phase="train", task_id=task.id, index=0),
        row=TaskRow(task=task, answer=TaskAnswer(gold_patch=""), split="train"),
    )
    return GenerationRequest(
        prompt_ids=tuple(prompt),
        sampling=SamplingParams(temperature=temperature, top_p=top_p, max_tokens=max_tokens),
        seed=seed,
        stop_ids=frozenset({stop}),
        context=context,
    )


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, VOCAB, (length,), generator=generator).tolist()


@torch.no_grad()
def logits_over(model: LanguageModel, ids: Sequence[int]) -> torch.Tensor:
    """Return the logits [T, V] after each id, from one forward pass."""
    hidden = model.packed_hidden(torch.tensor(ids), Segments.whole([len(ids)], torch.device("cpu")))
    return logits_of(hidden, model.head).float()


def recomputed(model: LanguageModel, ids: Sequence[int], *, temperature: float = 1.0) -> list[float]:
    """Return the log-probability of each id after the first, from one forward pass."""
    table = torch.log_softmax(logits_over(model, ids) / temperature, -1)
    return [float(table[i, token]) for i, token in enumerate(ids[1:])]


def gap(
    model: LanguageModel, prompt: Sequence[int], generation: Generation, *, temperature: float = 1.0
) -> float:
    """Return the largest difference between a response's log-probabilities and recomputed ones."""
    expected = recomputed(model, [*prompt, *generation.ids], temperature=temperature)[len(prompt) - 1 :]
    return max(abs(a - b) for a, b in zip(generation.logprobs, expected, strict=True))
