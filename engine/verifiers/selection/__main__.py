"""Command line that prints the Best@K curves of a table of rollouts.

    python -m engine.verifiers.selection ROLLOUTS.jsonl
    python -m engine.verifiers.selection ROLLOUTS.parquet --rule hybrid --rule ef --k 1 --k 8 --keep 4 --json

Rows are rollouts with the fields of ``Candidate``, or tasks with R2E-Gym's prediction columns. Prints a table
in percent, or JSON; a rule that lacks a score is named on stderr, and an error only where ``--rule`` asks for
it. Exit codes: 0, or 2 with a message on stderr when the table or an option is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from engine.errors import ConfigError, DatasetError, MissingScoreError, PreflightError
from engine.verifiers.selection.curves import (
    Curve,
    Short,
    available_rules,
    curves,
    possible_curves,
    unscored_tasks,
)
from engine.verifiers.selection.rules import RULES, Hybrid, named_rules
from engine.verifiers.selection.tables import read_table

EXIT_BAD_INPUT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the curves and return the exit code."""
    options = _parse(arguments)
    try:
        hybrid = Hybrid(keep=options.keep, minimum=options.minimum)
        table = read_table(options.table)
        rules = named_rules(options.rule or [rule.name for rule in available_rules(table)], hybrid=hybrid)
        missing: list[str] = []
        if options.leave_out_unscored:
            unscored = unscored_tasks(table, rules)
            missing = [f"{len(unscored)} tasks lack scores"] if unscored else []
            table = [candidate for candidate in table if candidate.task_id not in unscored]
        if options.rule:
            results = curves(table, rules, options.k, short=Short(options.short))
        else:
            results, reasons = possible_curves(table, rules, options.k, short=Short(options.short))
            missing += reasons
            if not results:
                raise DatasetError("; ".join(missing) or "no rollout has the scores of any rule")
    except (ConfigError, DatasetError, MissingScoreError, PreflightError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    for reason in missing:
        print(f"left out: {reason}", file=sys.stderr)
    print(json.dumps([asdict(curve) for curve in results], indent=2) if options.json else text_table(results))
    return 0


def text_table(found: Sequence[Curve]) -> str:
    """Return Best@K in percent, a line per K; ``*`` marks a K that some tasks fall short of."""
    lines = ["".join(["     K", *(f"{curve.rule:>10}" for curve in found)])]
    for points in zip(*(curve.points for curve in found), strict=True):
        mark = "*" if points[0].num_short else ""
        lines.append(
            f"{mark}{points[0].k}".rjust(6) + "".join(f"{100 * point.rate:10.1f}" for point in points)
        )
    return "\n".join(lines)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m engine.verifiers.selection", description="Best@K curves of a table of rollouts."
    )
    parser.add_argument("table", type=Path, help="parquet, JSONL or JSON file of rollouts")
    parser.add_argument(
        "--rule", action="append", help=f"a rule of {', '.join(RULES)}; default: all with scores"
    )
    parser.add_argument(
        "--k", action="append", type=int, help="a K; default: every K up to the fewest rollouts"
    )
    parser.add_argument("--keep", type=int, help="rollouts that hybrid keeps by P(YES); default: half of K")
    parser.add_argument(
        "--minimum", type=int, default=1, help="fewest that hybrid keeps of half (default: 1)"
    )
    parser.add_argument(
        "--short",
        choices=list(Short),
        default=Short.REFUSE,
        help="tasks with fewer than K rollouts: an error (refuse, the default), counted with all they have, "
        "or left out",
    )
    parser.add_argument(
        "--leave-out-unscored",
        action="store_true",
        help="leave out the tasks of which a rollout lacks a score of any of the rules",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
