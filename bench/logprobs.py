"""CPU seconds of log-probabilities and their gradients: in tiles, and from the full table of logits.

One forward and backward pass with the gradients of hidden states and head, float32, one thread; the numbers
of tokens keep the table itself below 1.3 GB. Run: ``python -m bench.logprobs [--quick]``; results go to
``bench/results/logprobs.json``.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.harness import store
from engine.models.base import Head
from engine.models.logprobs import token_logprobs

TOKENS = {2048: 8192, 151_936: 2048}
"""Tokens by vocabulary size."""
WIDTHS = (64, 1024, 2560)
REPEATS = 3


def in_tiles(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return log π of the targets as the trainer computes it."""
    return token_logprobs(hidden, Head(weight=weight), targets, 1.0, entropy=False)[0]


def whole_table(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return log π of the targets from the table of all logits."""
    return -functional.cross_entropy(hidden @ weight.T, targets, reduction="none")


def seconds(
    way: Callable[[Tensor, Tensor, Tensor], Tensor], vocabulary: int, width: int, repeats: int
) -> float:
    """Return the minimum CPU seconds of several passes."""
    generator = torch.Generator().manual_seed(0)
    tokens = TOKENS[vocabulary]
    hidden = torch.randn(tokens, width, generator=generator, requires_grad=True)
    weight = (torch.randn(vocabulary, width, generator=generator) / width**0.5).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,), generator=generator)
    times = []
    for _ in range(repeats):
        hidden.grad = weight.grad = None
        started = time.process_time()
        torch.autograd.backward(-way(hidden, weight, targets).mean())
        times.append(time.process_time() - started)
    return min(times)


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one repetition, without the widest")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    load, rows = os.getloadavg()[0], list[dict[str, Any]]()
    for vocabulary in TOKENS:
        for width in WIDTHS[: 2 if quick else None]:
            ours, whole = (
                seconds(way, vocabulary, width, 1 if quick else REPEATS) for way in (in_tiles, whole_table)
            )
            row = {"vocabulary": vocabulary, "tokens": TOKENS[vocabulary], "width": width}
            rows.append(row | {"tiles_s": round(ours, 2), "table_s": round(whole, 2)})
            rows[-1]["speed"] = round(whole / ours, 2)
            print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    machine = {"processor": platform.machine(), "torch": torch.__version__, "load_at_start": round(load, 1)}
    store("logprobs", {**machine, "points": rows}, quick=quick)


if __name__ == "__main__":
    main()
