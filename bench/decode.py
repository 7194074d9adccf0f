"""Tokens per second of published models on a CPU: the sampler next to transformers' own ``generate``.

Prefill of different random prompts, then decoding of a batch, in float32 and bfloat16, all in turns in one
process. Prefill is timed with one token sampled, decoding is the rest of a run with more; caches are
emptied between. Model: a GGUF file, a folder or a name of the Hugging Face Hub.
Run: ``python -m bench.decode MODEL … [--quick]``; results go to ``bench/results/decode.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench.harness import store
from engine.inference.base import GenerationContext, GenerationRequest, SamplingParams
from engine.inference.builtin.sampler import TransformerPolicy
from engine.models.loader import open_model
from engine.models.references import find_model
from engine.types import RolloutKey
from tests.builders.rollout_builders import make_row

PROMPT, SAMPLED = 128, 32
BATCHES, QUICK_BATCHES, ROUNDS = (16, 64), (4,), 3
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
SHARE_BAR, GAIN_BAR = 0.9, 2.2

Generate = Callable[[Sequence[list[int]], int], None]
"""Samples a number of tokens for each prompt."""


def sampler(folder: str, dtype: torch.dtype, home: Path) -> tuple[Generate, int]:
    """Return our sampler, and the model's vocabulary."""
    opened = open_model(folder, home=home, dtype=dtype)
    policy = TransformerPolicy(opened.model, opened.chat(), max_batch=max(BATCHES))

    def request(index: int, prompt: list[int], number: int) -> GenerationRequest:
        key = RolloutKey(iteration=0, phase="bench", task_id="b" * 16, index=index)
        return GenerationRequest(
            prompt_ids=prompt,
            sampling=SamplingParams(max_tokens=number),
            seed=index,
            stop_ids=frozenset(),
            context=GenerationContext(key=key, row=make_row(), steps=()),
        )

    async def sample(prompts: Sequence[list[int]], number: int) -> None:
        requests = [request(index, prompt, number) for index, prompt in enumerate(prompts)]
        await asyncio.gather(*(policy.generate(one) for one in requests))
        policy.set_version(policy.version + 1)  # forget the prompts

    return lambda prompts, number: asyncio.run(sample(prompts, number)), opened.model.vocab_size


def reference(folder: str, dtype: torch.dtype) -> Generate:
    """Return transformers' ``generate``."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.eval()

    def generate(prompts: Sequence[list[int]], number: int) -> None:
        ids = torch.tensor(prompts)
        model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=number, min_new_tokens=number,
            do_sample=True, top_k=0, pad_token_id=0, eos_token_id=None,
        )  # fmt: skip

    return generate


def measure(ref: str, batches: Sequence[int], rounds: int, home: Path) -> dict[str, dict[str, list[float]]]:
    """Return the rates of prefill and decoding by sampler, precision and batch, tokens per second."""
    found = find_model(ref, home=home).folder
    assert found is not None, f"{ref} has no weights"
    folder, samplers, vocabulary = str(found), {}, 0
    for name, dtype in DTYPES.items():
        samplers[f"sampler {name}"], vocabulary = sampler(folder, dtype, home)
        samplers[f"transformers {name}"] = reference(folder, dtype)
    rates: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for turn in range(rounds):
        for batch in batches:
            drawn = random.Random(turn)
            prompts = [
                [drawn.randrange(100, vocabulary - 1_000) for _ in range(PROMPT)] for _ in range(batch)
            ]
            for name, generate in samplers.items():
                began = time.perf_counter()
                generate(prompts, 1)
                fed = time.perf_counter()
                generate(prompts, 1 + SAMPLED)
                prefill, whole = fed - began, time.perf_counter() - fed
                rates[name][f"prefill at {batch}"].append(batch * PROMPT / prefill)
                rates[name][f"decode at {batch}"].append(batch * SAMPLED / (whole - prefill))
    return rates


def report(ref: str, rates: dict[str, dict[str, list[float]]]) -> None:
    """Print a table of medians, and the ratios with their bars."""
    columns = list(next(iter(rates.values())))
    print(f"\n{Path(ref).name}, tokens/s", *(f"{column:>16}" for column in columns))
    for name, row in rates.items():
        print(f"{name:<28}", *(f"{median(row[column]):>16,.0f}" for column in columns))
    for title, above, below in (
        (f"bf16 to transformers ≥ {SHARE_BAR}", "sampler bf16", "transformers bf16"),
        (f"f32 to transformers ≥ {SHARE_BAR}", "sampler f32", "transformers f32"),
        (f"bf16 to f32 ≥ {GAIN_BAR}", "sampler bf16", "sampler f32"),
    ):
        ratios = (
            median(a / b for a, b in zip(rates[above][column], rates[below][column], strict=True))
            for column in columns
        )
        print(f"{title:<28}", *(f"{ratio:>16.2f}" for ratio in ratios))


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--quick", action="store_true", help="one round of a batch of 4")
    arguments = parser.parse_args()
    if not arguments.models:
        print("nothing is measured: name a model (trainyard model fetch NAME puts one into a folder)")
        return
    load, results = os.getloadavg()[0], {}
    with tempfile.TemporaryDirectory() as home:
        for ref in arguments.models:
            rates = measure(
                ref,
                QUICK_BATCHES if arguments.quick else BATCHES,
                1 if arguments.quick else ROUNDS,
                Path(home),
            )
            report(ref, rates)
            results[Path(ref).name] = rates
    threads = torch.get_num_threads()
    store("decode", {"load": load, "threads": threads, "models": results}, quick=arguments.quick)


if __name__ == "__main__":
    main()
