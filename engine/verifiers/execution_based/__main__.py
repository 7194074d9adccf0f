"""Command line of the execution-based verifier.

    python -m engine.verifiers.execution_based --dataset NAME --rollouts FILE --tests FILE --output FOLDER

Scores every rollout of a file by regression tests, and by reproduction tests if a file of them is given.
The last line printed holds the counts as JSON; ``python -m engine.verifiers.selection FOLDER/rollouts.jsonl``
prints Best@K of the scores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from engine.config.base import config_error, parse_settings
from engine.config.run import with_overrides
from engine.errors import TrainyardError
from engine.verifiers.execution_based.scoring import ScoringInputs, ScoringSettings, score_files

EXIT_BAD_INPUT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 2 with a message on stderr for wrong arguments."""
    options = _parse(arguments)
    inputs = ScoringInputs(
        dataset=options.dataset,
        rollouts=options.rollouts,
        tests=options.tests,
        output=options.output,
        run_id=options.run_id,
    )
    try:
        settings = ScoringSettings.model_validate(with_overrides({}, parse_settings(options.set)))
        print(json.dumps(asyncio.run(score_files(options.home, inputs, settings))))
    except ValidationError as error:
        print(config_error(error), file=sys.stderr)
        return EXIT_BAD_INPUT
    except TrainyardError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m engine.verifiers.execution_based", description="Score rollouts by running tests."
    )
    parser.add_argument("--home", type=Path, default=Path(".trainyard"), help="the data folder")
    parser.add_argument("--dataset", required=True, help="dataset of the rollouts' tasks")
    parser.add_argument("--rollouts", type=Path, required=True, help="file with task, trajectory and patch")
    parser.add_argument("--tests", type=Path, help="file with task, trajectory and content or patch")
    parser.add_argument("--output", type=Path, required=True, help="folder of scores and reports")
    parser.add_argument("--run-id", default="verify", help="owner of the sandboxes")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="sandbox.…, timeout_s, max_parallel …"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
