"""Command line of the planner.

    python -m engine.planning deepswe-32b --gpus 64xH100 --set trainer.iterations=100 --assume mfu=0.35

prints what a run needs and costs; exit code 1: it does not fit, 2: an error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from engine.config.base import parse_settings
from engine.config.recipes import resolve
from engine.errors import TrainyardError
from engine.planning import plan_configured, render, to_json


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a plan; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m engine.planning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", help="name of a recipe")
    parser.add_argument("--gpus", metavar="COUNTxNAME", help="GPUs, e.g. 8xH100; default: the H100 it needs")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting")
    parser.add_argument("--assume", action="append", default=[], metavar="KEY=VALUE", help="an assumption")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        plan = plan_configured(
            resolve(options.recipe, parse_settings(options.set)),
            gpus=options.gpus,
            assumptions=parse_settings(options.assume),
        )
    except TrainyardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(to_json(plan), indent=2) if options.json else render(plan))
    return 1 if plan.problems else 0


if __name__ == "__main__":
    sys.exit(main())
