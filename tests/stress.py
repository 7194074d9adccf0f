"""Run the tests several times beside two busy processes: ``python -m tests.stress TIMES [ARGUMENTS]``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.recorded import run_recorded, summary

_LOOPS = 2
_BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(100_000))"
"""Program of a busy loop that ends when its parent process has ended for any reason."""


@contextmanager
def _busy_loops() -> Iterator[None]:
    command = [sys.executable, "-c", _BUSY, str(os.getpid())]
    loops = [subprocess.Popen(command) for _ in range(_LOOPS)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main(times: int, arguments: Sequence[str]) -> int:
    """Run the tests repeatedly and print a summary; return 0 if no test failed."""
    lines, failures = [], 0
    with _busy_loops():
        for number in range(1, times + 1):
            outcome = run_recorded(arguments, Path(f"build/tests/stress-{number}.json"))
            failures += len(outcome.failed) or int(outcome.code != 0)
            lines.append(summary(f"run {number} of {times}", outcome))
    print("", *lines, f"{failures} failures in {times} runs beside {_LOOPS} busy processes", sep="\n")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
