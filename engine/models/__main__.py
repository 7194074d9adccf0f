"""Command line for models.

    python -m engine.models plan Qwen/Qwen3-4B --set lora_rank=32 --set precision=bf16 --device-gib 24

prints parameters and the memory of an update on each rank; exit code 1: it does not fit the device.

    python -m engine.models fetch smollm2-135m --home .trainyard

writes the policy folder ``policies/smollm2-135m`` of the data folder and prints its card as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from engine.config.base import parse_settings
from engine.config.learning.trainer import TrainerConfig
from engine.errors import TrainyardError
from engine.models.fetching import fetch_published
from engine.models.memory.estimate import estimate_memory
from engine.models.memory.plan import GIB


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code: 0 it fits, 1 it does not, 2 an error."""
    parser = argparse.ArgumentParser(prog="python -m engine.models", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    plan = commands.add_parser("plan", help="print the memory of an update, before anything is loaded")
    plan.add_argument("ref", help="a policy: folder, hub name, run:ID, builtin:NAME or fresh:NAME")
    plan.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a trainer setting")
    plan.add_argument("--longest", type=int, default=0, help="maximum tokens of a sample")
    plan.add_argument("--device-gib", type=float, help="memory of a device, GiB")
    plan.add_argument("--reference", action="store_true", help="the objective has a KL term")
    plan.add_argument("--home", type=Path, default=Path(".trainyard"), help="the data folder")
    fetch = commands.add_parser("fetch", help="fetch a model of the catalogue into a policy folder")
    fetch.add_argument("name", help="name in the catalogue")
    fetch.add_argument("--home", type=Path, default=Path(".trainyard"), help="the data folder")
    options = parser.parse_args(arguments)
    try:
        return _fetch(options) if options.command == "fetch" else _plan(options)
    except (TrainyardError, ValidationError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _fetch(options: argparse.Namespace) -> int:
    folder = options.home / "policies" / options.name
    print(json.dumps({"folder": str(folder), **fetch_published(options.name, folder)}))
    return 0


def _plan(options: argparse.Namespace) -> int:
    config = TrainerConfig(**parse_settings(options.set))
    sizes, plan = estimate_memory(
        options.ref, config, home=options.home, longest=options.longest, reference=options.reference
    )
    print(
        f"{sizes.parameters / 1e9:.2f} billion parameters, {sizes.active / 1e9:.2f} active per token, "
        f"{sizes.trained / 1e9:.3f} trained\n{plan.table()}"
    )
    if options.device_gib is None:
        return 0
    problem = plan.problem(round(options.device_gib * GIB))
    print(problem or f"fits {options.device_gib:g} GiB")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
