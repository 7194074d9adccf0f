"""``python -m engine.grading log --row ROW.json --log TEST_OUTPUT``: re-grade a stored log, no sandbox.

Prints the official per-instance report as JSON. To add a command: a function in ``_COMMANDS``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from engine.errors import DatasetError, TrainyardError
from engine.grading.reports import regrade


def grade_log(options: argparse.Namespace) -> None:
    """Print the report of one log."""
    try:
        row = json.loads(options.row.read_text(encoding="utf-8"))
        log = options.log.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise DatasetError(f"cannot read {error.filename}: {error.strerror}") from None
    except ValueError as error:
        raise DatasetError(f"{options.row} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise DatasetError(f"{options.row} does not hold one row (a JSON object)")
    print(json.dumps(regrade(row, log), indent=4))


def main(arguments: list[str] | None = None) -> int:
    """Entry point; 2 with a message on stderr when something the caller gave is wrong."""
    parser = argparse.ArgumentParser(prog="python -m engine.grading", description=__doc__)
    commands = parser.add_subparsers(required=True)
    log = commands.add_parser("log", help="re-grade a stored test log")
    log.add_argument("--row", type=Path, required=True, help="JSON object: the dataset's row")
    log.add_argument("--log", type=Path, required=True, help="the test log")
    log.set_defaults(run=grade_log)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except TrainyardError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
