"""Command line of grading: predictions and stored logs.

    python -m engine.grading log --row ROW.json --log TEST_OUTPUT        re-grade a stored log, no sandbox
    python -m engine.grading predictions --dataset N --predictions FILE  grade predictions in sandboxes

The first prints the official per-instance report as JSON, the second ends with one line of JSON counts. To
add a command: a function and its parser in ``main``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from functools import partial
from pathlib import Path

from engine.errors import TrainyardError
from engine.grading.official.prediction_files import GOLD
from engine.grading.official.reports import regrade_files
from engine.isolation import run_isolated


def grade_log(options: argparse.Namespace) -> None:
    """Print the report of one log; it is untrusted and is parsed within grading's limits."""
    report = asyncio.run(run_isolated(partial(regrade_files, options.row, options.log)))
    print(json.dumps(report, indent=4))


def grade_file(options: argparse.Namespace) -> None:
    """Grade predictions; the last line printed holds the counts."""
    from engine.grading.official.predictions import Assignment, PredictionSettings, grade_predictions

    settings = PredictionSettings.of(options.set)
    assignment = Assignment(
        dataset=options.dataset,
        predictions=options.predictions,
        split=options.split,
        run_id=options.run_id,
        output=options.output,
    )
    print(json.dumps(asyncio.run(grade_predictions(options.home, assignment, settings))))


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 2 with a message on stderr for wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m engine.grading", description=__doc__)
    commands = parser.add_subparsers(required=True)
    log = commands.add_parser("log", help="re-grade a stored test log")
    log.add_argument("--row", type=Path, required=True, help="JSON object: the dataset's row")
    log.add_argument("--log", type=Path, required=True, help="the test log")
    log.set_defaults(run=grade_log)
    file = commands.add_parser("predictions", help="grade predictions of a dataset")
    file.add_argument("--home", type=Path, default=Path(".trainyard"), help="the data folder")
    file.add_argument("--dataset", required=True)
    file.add_argument("--split", default="", help="only this split")
    file.add_argument("--predictions", required=True, help=f".jsonl or .json file, or '{GOLD}'")
    file.add_argument("--run-id", default="grade", help="names the folder of logs")
    file.add_argument("--output", type=Path, default=Path(), help="folder of logs and run report")
    file.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="sandbox.… or grading.…"
    )
    file.set_defaults(run=grade_file)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except TrainyardError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
