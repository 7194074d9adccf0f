"""Peak memory of an update by length, compared with an update that keeps the full table of logits.

One optimizer step of a tiny model with a vocabulary of 151,936 on one trajectory: forward and backward pass
of the scorer, then AdamW. Each point is measured in a separate process: peak memory beyond the model, its
gradients and the optimizer's state. On a CPU that is resident memory, on a GPU the allocator's.
Run: ``python -m bench.train_memory [--quick]``; results go to ``bench/results/train_memory.json``.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.harness import store
from engine.models.base import LanguageModel, logits_of
from engine.models.builtin.architectures import ARCHITECTURES
from engine.models.builtin.transformer import Transformer
from engine.trainer.batch import Microbatch, Sample, make_microbatch
from engine.trainer.ranks import ALONE
from engine.trainer.scorer import Scorer

MODEL = replace(ARCHITECTURES["tiny"], vocab_size=151_936, max_position_embeddings=32_768)
LENGTHS = (2048, 4096, 8192, 16_384, 32_768)
LONGEST_WHOLE = 4096
"""Length up to which the table of all logits is measured: of 2.3 GiB in float32, several at once."""
CLEAR_PEAK = Path("/proc/self/clear_refs")


def whole_table(model: LanguageModel, batch: Microbatch) -> Tensor:
    """Return log π of the sampled tokens from the table of all logits."""
    logits = logits_of(model.packed_hidden(batch.ids, batch.segments)[batch.columns], model.head)
    return torch.log_softmax(logits.float(), dim=1).gather(1, batch.targets.unsqueeze(1)).squeeze(1)


def update(way: str, length: int) -> float:
    """Return the peak memory of an update beyond the model and the optimizer's state, MiB."""
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Transformer(MODEL).to(device)
    scorer = Scorer(model, precision="f32", ranks=ALONE, recompute=True)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    step(scorer, "tiles", 64, optimizer, device)  # allocates gradients and moments
    before = _start_peak(device)
    step(scorer, way, length, optimizer, device)
    return (_peak(device) - before) / 2**20


def step(
    scorer: Scorer, way: str, length: int, optimizer: torch.optim.Optimizer, device: torch.device
) -> None:
    """Perform one update on a trajectory, every token of it sampled."""
    batch = make_microbatch((sample(length),), device)
    logprobs = whole_table(scorer.model, batch) if way == "table" else scorer(batch, 1.0, entropy=False)[0]
    torch.autograd.backward(-logprobs.mean())
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def sample(length: int) -> Sample:
    """Return a trajectory of ``length`` tokens."""
    ids = np.random.default_rng(length).integers(MODEL.vocab_size, size=length + 1, dtype=np.int32)
    return Sample(
        ids=ids[:-1],
        positions=np.arange(length),
        targets=ids[1:],
        sampler_logprobs=np.zeros(length, np.float32),
    )


def _start_peak(device: torch.device) -> int:
    """Return the bytes in use now, from which the peak counts."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    CLEAR_PEAK.write_text("5")
    return _status("VmRSS")


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else _status("VmHWM")


def _status(name: str) -> int:
    """Return a size in bytes from the process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) * 1024


def measure(way: str, length: int) -> dict[str, Any]:
    """Measure one point in a separate process."""
    started = time.monotonic()
    command = [sys.executable, "-m", "bench.train_memory", "--point", way, str(length)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        return {"way": way, "tokens": length, "failed": process.stderr.strip().splitlines()[-1:]}
    return {
        "way": way,
        "tokens": length,
        "peak_mib": round(float(process.stdout)),
        "table_mib": round(length * MODEL.vocab_size * 4 / 2**20),
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="up to 4,096 tokens")
    parser.add_argument(
        "--point", nargs=2, metavar=("WAY", "TOKENS"), help="measure one point in this process"
    )
    arguments = parser.parse_args()
    if arguments.point:
        way, length = arguments.point
        print(update(way, int(length)))
        return
    lengths = [length for length in LENGTHS if length <= (4096 if arguments.quick else LENGTHS[-1])]
    load = os.getloadavg()[0]
    rows = []
    for way in ("tiles", "table"):
        for length in lengths:
            if way == "tiles" or length <= LONGEST_WHOLE:
                rows.append(measure(way, length))
                print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    machine = {"processor": device_name(), "torch": torch.__version__, "load_at_start": round(load, 1)}
    store("train_memory", {**machine, "vocabulary": MODEL.vocab_size, "points": rows}, quick=arguments.quick)


def device_name() -> str:
    """Return the GPU's name, else the kind of processor."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()


if __name__ == "__main__":
    main()
