"""``python -m engine.trainer export SOURCE OUT [--dtype bfloat16] [--adapters]``, and ``rank``.

SOURCE is a run's folder, one of its checkpoints, or a policy folder. Exit code 2: nothing to export there.
``rank`` is the program of one rank of a trainer, started by a run or by ``torchrun``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.errors import CheckpointError, TrainerError
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
    commands.add_parser("rank", help="run one rank of a trainer").set_defaults(is_rank=True)
    given = parser.parse_args(arguments)
    if hasattr(given, "is_rank"):
        return _serve()
    try:
        if given.adapters:
            found = export_adapters(given.source, given.out)
        else:
            found = export_policy(given.source, given.out, dtype=given.dtype)
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"exported {found} to {given.out}")
    return 0


def _serve() -> int:
    from engine.trainer.processes.rank import serve

    try:
        return serve()
    except TrainerError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
