"""Run the drills, each part in its own pytest process: ``python -m tests.drills [PART …]``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.recorded import run_recorded, summary

_FOLDER = Path(__file__).parent
_ON_ALL_CORES = {"adversary", "processors"}
"""Parts without servers of their own; the tests of all others run in sequence."""
_TIMEOUT_S = 3600
"""Limit of hanging tests; a vLLM server alone takes minutes to start on a busy machine."""


def main(wanted: Sequence[str]) -> int:
    """Return 0 when no part failed."""
    parts = sorted(path.parent.name for path in _FOLDER.glob("*/__init__.py"))
    if unknown := set(wanted) - set(parts):
        print(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(parts)}", file=sys.stderr)
        return 2
    lines, failed = [], False
    for part in wanted or parts:
        print(f"== {part}", flush=True)
        spread = ("-n", "auto", "--dist", "loadgroup") if part in _ON_ALL_CORES else ()
        arguments = (str(_FOLDER / part), f"--timeout={_TIMEOUT_S}", *spread)
        outcome = run_recorded(arguments, Path(f"build/tests/drills-{part}.json"))
        failed |= outcome.code != 0
        lines.append(summary(part, outcome))
    print("", *lines, sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
