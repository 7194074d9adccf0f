"""Comparison with TRL: timing, the row of results, and the command."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import store


@dataclass(slots=True)
class Timing:
    """Timing of repeated updates."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    updates: int = 0

    def add(self, update: Callable[[], object]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        update()
        self.wall_s += time.perf_counter() - wall
        self.cpu_s += time.process_time() - cpu
        self.updates += 1


def write_tokenizer_settings(folder: Path) -> None:
    """Write the settings that transformers needs to open the tokenizer in a model's folder."""
    names = {"pad_token": "<|im_end|>", "eos_token": "<|im_end|>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def compared(
    mine: Timing,
    peers: Mapping[int, Timing],
    *,
    tokens: int,
    repeats: int,
    trajectories: int,
    threads: int,
    bar: float,
) -> dict[str, Any]:
    """Return the results of our trainer beside TRL's with its best microbatch.

    Args:
        peers: microbatch → TRL's timing with it.
        tokens: tokens of one update.
        bar: ratio to reach.
    """
    best = min(peers, key=lambda size: peers[size].cpu_s)
    peer, rate = peers[best], tokens * repeats
    return {
        "trajectories": trajectories,
        "tokens": tokens,
        "threads": threads,
        "repeats": repeats,
        "ours_tokens_per_s": round(rate / mine.wall_s),
        "trl_tokens_per_s": round(rate / peer.wall_s),
        "trl_microbatch": best,
        "ours_cpu_s": round(mine.cpu_s / repeats, 2),
        "trl_cpu_s": round(peer.cpu_s / repeats, 2),
        "ratio_wall": round(peer.wall_s / mine.wall_s, 2),
        "ratio_cpu": round(peer.cpu_s / mine.cpu_s, 2),
        "bar": bar,
        "cpus": os.cpu_count(),
    }


def against_trl(
    name: str,
    measure: Callable[[int, int, int], dict[str, Any]],
    *,
    trajectories: int,
    repeats: int,
    description: str | None,
) -> None:
    """Run a bench's command: measure, print and store.

    Args:
        name: name of the bench.
        measure: returns the results for a number of trajectories, of repetitions and of threads.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="16 trajectories and one repetition")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    try:
        import trl
    except ImportError:
        print("skipped: TRL is not installed (pip install -r requirements/oracles.txt)")
        return
    row = measure(16 if options.quick else trajectories, 1 if options.quick else repeats, options.threads)
    row["trl"] = trl.__version__
    for key, value in row.items():
        print(f"{key:<20}{value:>12}")
    store(name, row, quick=options.quick)
