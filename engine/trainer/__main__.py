"""``python -m engine.trainer export SOURCE OUT [--dtype bfloat16] [--adapters]``; and other commands.

SOURCE is a run's folder, one of its checkpoints, or a policy folder. Exit code 2: it has nothing to export.
``conversations TRAJECTORIES OUT --format sharegpt`` writes stored trajectories (a fine-tuning run's
``trajectories.jsonl``, ``trainyard trajectories export``) for other trainers.
``rank`` is the program of one rank of a trainer, started by a run or by ``torchrun``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.config.learning.fine_tuning import ConversationConfig
from engine.datasets.conversations.base import ConversationError
from engine.datasets.conversations.writing import FORMATS, write_conversations
from engine.errors import CheckpointError, ConfigError, DatasetError, TrainerError
from engine.events.stored_trajectories import read_trajectories
from engine.trainer.export import DTYPES, export_adapters, export_policy


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m engine.trainer", description=__doc__)
    commands = parser.add_subparsers(required=True)
    export = commands.add_parser("export", help="write a folder that transformers or peft opens")
    export.add_argument("source", type=Path)
    export.add_argument("out", type=Path)
    export.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    export.add_argument("--adapters", action="store_true", help="the adapters alone, for peft")
    export.set_defaults(perform=_export)
    convert = commands.add_parser("conversations", help="write stored trajectories for other trainers")
    convert.add_argument("trajectories", type=Path)
    convert.add_argument("out", type=Path)
    convert.add_argument("--format", choices=sorted(FORMATS), default="openai")
    convert.add_argument("--prompt", default="deepswe_v1", help="as in agent.prompt")
    convert.add_argument("--tools", choices=("r2e_gym", "openhands"), default="r2e_gym")
    convert.add_argument("--calls", choices=("xml", "native"), default="xml", help="format of tool calls")
    convert.set_defaults(perform=_write_conversations)
    commands.add_parser("rank", help="run one rank of a trainer").set_defaults(perform=_serve)
    options = parser.parse_args(arguments)
    return int(options.perform(options))


def _export(given: argparse.Namespace) -> int:
    try:
        if given.adapters:
            exported = export_adapters(given.source, given.out)
        else:
            exported = export_policy(given.source, given.out, dtype=given.dtype)
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"exported {exported} to {given.out}")
    return 0


def _write_conversations(given: argparse.Namespace) -> int:
    from engine.trainer.sft.recorded import ConversationWriter

    settings = {"prompt": given.prompt, "tools": given.tools, "tool_format": given.calls}
    try:
        writer = ConversationWriter(ConversationConfig.model_validate(settings))
        conversations = map(writer.conversation, read_trajectories(given.trajectories))
        count = write_conversations(conversations, given.out, given.format)
    except (ConfigError, DatasetError, ConversationError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"wrote {count} rows to {given.out}")
    return 0 if count else 2


def _serve(_given: argparse.Namespace) -> int:
    from engine.trainer.processes.rank import serve

    try:
        return serve()
    except TrainerError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
