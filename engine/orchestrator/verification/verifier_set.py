"""Command that builds a judge's training set from finished runs.

    python -m engine.orchestrator.verification.verifier_set set.jsonl \
        --model Qwen/Qwen3-4B --on-policy 12 --off-policy 7 8

Writes one conversation per line (``messages`` of OpenAI's interface, and the trajectory's key, task, origin
and outcome) and prints counts as JSON. ``engine.verifiers.execution_free.training_set`` defines the rules.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.config.learning.verifier import TRAINING_SPLITS
from engine.errors import TrainyardError
from engine.models.loader import open_model
from engine.orchestrator.verification.stored_trajectories import StoredTrajectories
from engine.orchestrator.verification.train_judge import labelled
from engine.verifiers.execution_free.training_set import (
    Example,
    ExampleFormat,
    Labelled,
    choose,
    examples,
    write_examples,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the set; return the exit code."""
    options = _parse(arguments)
    try:
        counts = _write(options)
    except (TrainyardError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(counts))
    return 0


def _write(options: argparse.Namespace) -> dict[str, int]:
    chat = open_model(options.model, home=options.home, read=False).chat().without_thinking()
    unknown: list[str] = []
    candidates = [
        trajectory
        for origin in ("on_policy", "off_policy")
        for trajectory in _all_labelled(options, origin, unknown)
    ]
    chosen = choose(candidates, seed=options.seed, per_task=options.per_task, extra=options.extra)
    too_long: list[str] = []
    counts: Counter[str] = Counter()

    def counted(found: Iterator[Example]) -> Iterator[Example]:
        for example in found:
            counts[f"{example.origin}_{'right' if example.resolved else 'wrong'}"] += 1
            counts["shortened"] += example.shortened > 0
            yield example

    form = ExampleFormat(
        limit=options.max_context - options.answer_tokens,
        prompt_tokens=lambda messages: len(chat.open(messages)),
        text_tokens=lambda text: len(chat.tokenizer.encode(text)),
        part=options.part,
    )
    rendered = examples(chosen, form, too_long=too_long)
    examples_written = write_examples(options.out, counted(rendered))
    return {
        "trajectories": len(candidates),
        "examples": examples_written,
        **dict(sorted(counts.items())),
        "too_long": len(too_long),
        "without_task": len(unknown),
    }


def _all_labelled(options: argparse.Namespace, origin: str, unknown: list[str]) -> Iterator[Labelled]:
    """Yield the trajectories of an origin; ``unknown`` receives those whose task is in no dataset."""
    for run in getattr(options, origin):
        source = StoredTrajectories(options.home / "runs" / run, home=options.home, phases=options.phases)
        unknown += map(str, source.without_task())
        yield from labelled(source, origin, splits=options.splits)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m engine.orchestrator.verification.verifier_set",
        description="Write a set to train a judge on, from the trajectories of finished runs.",
    )
    parser.add_argument("out", type=Path, help="the JSONL file to write")
    parser.add_argument("--model", required=True, help="the model to train: its tokens are counted")
    parser.add_argument("--on-policy", nargs="*", default=[], metavar="RUN", help="runs of the policy itself")
    parser.add_argument("--off-policy", nargs="*", default=[], metavar="RUN", help="runs of other policies")
    parser.add_argument("--phases", nargs="*", default=["train"], help="phases to read; without any, all")
    parser.add_argument(
        "--splits", nargs="*", default=TRAINING_SPLITS, help="splits of the tasks; without any, all"
    )
    parser.add_argument("--part", choices=("trajectory", "patch"), default="trajectory")
    parser.add_argument("--max-context", type=int, default=32_768, help="tokens of a prompt and its answer")
    parser.add_argument(
        "--answer-tokens", type=int, default=16, help="tokens of the context that the answer needs"
    )
    parser.add_argument("--per-task", type=int, default=1, help="pairs of a task and origin, at most")
    parser.add_argument(
        "--extra", type=int, default=0, help="further pairs of each origin, from tasks with one outcome only"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--home", type=Path, default=Path(os.environ.get("TRAINYARD_HOME", ".trainyard")))
    options = parser.parse_args(arguments)
    if not options.on_policy and not options.off_policy:
        parser.error("name runs with --on-policy, --off-policy or both")
    return options


if __name__ == "__main__":
    sys.exit(main())
