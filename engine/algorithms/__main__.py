"""Command line that prints the arithmetic of one group.

    python -m engine.algorithms explain GROUP.json
    python -m engine.algorithms explain - --preset dapo --set clip_high=0.3 --set
    'filtered_reasons=["max_steps"]'

Prints JSON; ``engine.algorithms.explain`` describes input and output. Terms left out for lack of columns are
reported on stderr. Exit codes: 0, or 2 with a message on stderr when the group or a setting is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.algorithms.explain import explain, left_out, parse_group, resolve_settings
from engine.config.base import parse_settings
from engine.config.learning.algorithm import parse_algorithm
from engine.config.presets import PRESETS
from engine.errors import ConfigError

EXIT_BAD_INPUT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    options = _parse(arguments)
    try:
        config = parse_algorithm(resolve_settings(options.preset, parse_settings(options.set)))
        group = parse_group(_read(options.group))
        answer = explain(group, config)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    for note in left_out(group, config):
        print(f"note: {note}", file=sys.stderr)
    print(json.dumps(answer, indent=2))
    return 0


def _read(source: str) -> Any:
    try:
        return json.loads(sys.stdin.read() if source == "-" else Path(source).read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{source} is not JSON: {error}") from error


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m engine.algorithms", description="The objective, explained on one group."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("explain", help="print advantages, masks, token losses and loss as JSON")
    command.add_argument("group", metavar="GROUP.json", help="the group; - is standard input")
    command.add_argument("--preset", help=f"one of {', '.join(PRESETS)}; default grpo_pp")
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change one setting of the preset"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
