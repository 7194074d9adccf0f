"""Check of a run's launcher: ``python -m workers.preflight RECIPE [--set KEY=VALUE]``.

Prints one line per problem and exits with 1; without problems prints the launcher and exits with 0.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
django.setup()

from engine.config.base import parse_settings  # noqa: E402  (needs the app registry)
from engine.config.recipes import RECIPES, resolve  # noqa: E402
from engine.errors import ConfigError  # noqa: E402
from webapp.runs.services.drafts import draft  # noqa: E402
from workers import stores  # noqa: E402
from workers.launchers import LAUNCHERS  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the launcher of a recipe; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m workers.preflight", description="Check what a run's launcher lacks; start nothing."
    )
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting")
    options = parser.parse_args(arguments)
    try:
        # Shipped recipes need no database.
        settings = parse_settings(options.set)
        is_shipped = options.recipe in RECIPES
        run = (
            resolve(options.recipe, settings)
            if is_shipped
            else draft(recipe=options.recipe, overrides=settings).resolved()
        )
        LAUNCHERS[run.launcher.backend].check(run)
        stores.check(run)
    except ConfigError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return 1
    print(f"launcher {run.launcher.backend}: nothing is missing")
    return 0


if __name__ == "__main__":
    sys.exit(main())
