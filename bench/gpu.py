"""Tests and measurements on a GPU, with time limits and without downloads (``make gpu``).

The tests in ``tests/gpu``, ``bench/train_mfu``, and a short GRPO++ run on FrozenLake on the GPU, each in a
separate process with a time limit. Without CUDA it exits with a message; ``--device cpu --quick`` runs
the same code on a CPU with tiny sizes. Run: ``python -m bench.gpu [--quick] [--device cpu]``; results go to
``bench/results/gpu.json``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness import store

ROOT = Path(__file__).parent.parent
NEEDED = ("torch", "transformers", "accelerate", "safetensors", "tokenizers", "peft", "numpy", "pydantic",
          "structlog", "httpx", "stamina", "unidiff", "packaging", "filelock", "pytest")  # fmt: skip
"""Required packages; torchao, for 8-bit moments, is optional."""
LIMITS_S = {"tests": 300, "train_mfu": 600, "frozenlake": 240}
"""Time limit of each part: 19 minutes in all."""


def part(name: str, command: Sequence[str], environment: dict[str, str]) -> dict[str, Any]:
    """Run one part; return its outcome, seconds and last lines of output."""
    started = time.monotonic()
    print(f"== {name}", flush=True)
    try:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMITS_S[name],
        )
        outcome, output = "passed" if done.returncode == 0 else f"exit code {done.returncode}", done.stdout
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout.decode(errors="replace") if isinstance(expired.stdout, bytes) else ""
        outcome = f"stopped after {LIMITS_S[name]} s"
    print(output, flush=True)
    lines = output.splitlines()[-40:]
    return {"outcome": outcome, "seconds": round(time.monotonic() - started, 1), "output": lines}


def run_tests(device: str) -> dict[str, Any]:
    """Run ``tests/gpu`` with its own pytest settings, which need no plugin and no server."""
    options = ["-c", "tests/gpu/pytest.ini", "--rootdir", "tests/gpu", "--confcutdir", "tests/gpu"]
    return part("tests", ["-m", "pytest", *options, "tests/gpu"], {"TRAINYARD_GPU_TESTS": device})


def run_mfu(device: str, *, quick: bool) -> dict[str, Any]:
    """Run ``bench/train_mfu``."""
    return part("train_mfu", ["-m", "bench.train_mfu", "--device", device, *(["--quick"] * quick)], {})


def run_frozenlake(device: str, *, quick: bool) -> dict[str, Any]:
    """Train FrozenLake's policy with GRPO++ for some iterations; return the outcome and their metrics."""
    settings = {
        "trainer.device": device, "trainer.iterations": 2 if quick else 20,
        "evaluation.every": 1000, "evaluation.samples": 1,
        "trainer.tasks_per_iteration": 4 if quick else 16,
        "trainer.precision": "bf16" if device == "cuda" else "f32",
    }  # fmt: skip
    chosen = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with tempfile.TemporaryDirectory() as home:
        result = part(
            "frozenlake", ["-m", "engine.run", "--recipe", "frozenlake", *chosen, "--home", home], {}
        )
        spools = sorted(Path(home).glob("runs/*/events.jsonl"))
        result["iterations"] = [metrics for spool in spools for metrics in iterations(spool)]
    return result


def iterations(spool: Path) -> list[dict[str, float]]:
    """Return the main metrics of each finished iteration in a run's event log."""
    names = ("solve/rate", "update/seconds", "update/tokens_per_s", "mismatch/max")
    events = [json.loads(line) for line in spool.read_text().splitlines()]
    finished = [event for event in events if event.get("type") == "iteration_finished"]
    return [{name: event["metrics"].get(name) for name in names} for event in finished]


def main() -> int:
    """Run all parts, store their results; exit code 1 when one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller measurements")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny sizes")
    options = parser.parse_args()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"error: this Python lacks {', '.join(missing)}: install them (requirements/engine.txt), "
            "or bring their wheels to a machine without a network"
        )
        return 2
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("skipped: torch sees no CUDA device")
        return 0
    parts = {
        "tests": run_tests(options.device),
        "frozenlake": run_frozenlake(options.device, quick=options.quick),
        "train_mfu": run_mfu(options.device, quick=options.quick),
    }
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    versions = {name: importlib.import_module(name).__version__ for name in ("torch", "transformers")}
    store("gpu", {"device": device, **versions, **parts}, quick=options.quick or options.device == "cpu")
    for name, result in parts.items():
        print(f"{name}: {result['outcome']} in {result['seconds']} s")
    return 0 if all(result["outcome"] == "passed" for result in parts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
