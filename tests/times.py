"""Wall and CPU seconds of every test: a plugin (``--times FILE``) and, to print its file, a command.

The CPU time of a test includes its process and all descendants. The setup of a shared fixture counts for the
first test that uses it, its teardown for the last.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

_SLOWEST = 30
_TICKS = os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--times``."""
    parser.addoption(
        "--times", type=Path, metavar="FILE", help="write each test's seconds and outcome as JSON"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Measure in the processes that run tests; write the file in the one that the user started."""
    if not config.option.times:
        return
    config.pluginmanager.register(_Clock())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Record(config.option.times))


def _cpu_seconds() -> float:
    return sum(os.times()[:4]) + sum(map(_with_descendants, _children(os.getpid())))


def _with_descendants(pid: int) -> float:
    """Return the CPU seconds of a running process and its descendants."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS + sum(map(_with_descendants, _children(pid)))
    except OSError:  # it has just ended
        return 0.0


def _children(pid: int) -> list[int]:
    pids: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has just ended
            pids += map(int, file.read_text().split())
    return pids


class _Clock:
    """Plugin that attaches CPU seconds to each test's last report and to the output of an xdist worker."""

    def __init__(self) -> None:
        self._last: float | None = None

    def pytest_runtest_logstart(self) -> None:
        if self._last is None:
            self._last = _cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            now = _cpu_seconds()
            report.user_properties.append(("cpu", now - (self._last or 0.0)))
            self._last = now
        return report

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["cpu"] = _cpu_seconds()


class _Record:
    """Plugin that collects the reports of all workers and writes them at the end."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._begun = time.monotonic()
        self._workers_cpu = 0.0
        self._tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self._tests.setdefault(report.nodeid, {"wall": 0.0, "cpu": 0.0, "outcome": "passed"})
        test["wall"] += report.duration
        for name, value in report.user_properties:
            if name == "cpu":
                test["cpu"] += value
        if report.outcome != "passed" and test["outcome"] != "failed":
            test["outcome"] = report.outcome

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tests[report.nodeid] = {"wall": 0.0, "cpu": 0.0, "outcome": "failed"}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._workers_cpu += getattr(node, "workeroutput", {}).get("cpu", 0.0)

    def pytest_unconfigure(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        wall = time.monotonic() - self._begun
        session = {"wall": wall, "cpu": _cpu_seconds() if not self._workers_cpu else self._workers_cpu}
        self._file.write_text(json.dumps({"session": session, "tests": self._tests}, indent=1))


def tables(recorded: dict[str, Any]) -> str:
    """Return Markdown tables with the sums by folder and the slowest tests."""
    folders: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, test in recorded["tests"].items():
        folders["/".join(name.split("::")[0].split("/")[1:3])].append(test)
    total, session = list(recorded["tests"].values()), recorded["session"]
    in_tests = sum(test["cpu"] for test in total)
    lines = ["| folder | tests | skipped | wall s | CPU s |", "|---|---:|---:|---:|---:|"]
    ordered = sorted(folders.items(), key=lambda item: -sum(test["wall"] for test in item[1]))
    lines += [_sums(folder, tests) for folder, tests in ordered]
    lines.append(f"| imports, collection | | | | {session['cpu'] - in_tests:.0f} |")
    lines.append(_sums("all", total))
    lines.append(f"| as run | | | {session['wall']:.0f} | {session['cpu']:.0f} |")
    slowest = sorted(recorded["tests"].items(), key=lambda item: -item[1]["wall"])[:_SLOWEST]
    lines += ["", "| slowest | wall s | CPU s |", "|---|---:|---:|"]
    lines += [f"| `{name}` | {test['wall']:.1f} | {test['cpu']:.1f} |" for name, test in slowest]
    return "\n".join(lines)


def _sums(name: str, tests: Iterable[dict[str, Any]]) -> str:
    tests = list(tests)
    skipped = sum(test["outcome"] == "skipped" for test in tests)
    wall, cpu = (sum(test[clock] for test in tests) for clock in ("wall", "cpu"))
    return f"| {name} | {len(tests)} | {skipped} | {wall:.0f} | {cpu:.0f} |"


if __name__ == "__main__":
    recorded = Path(sys.argv[1])
    if not recorded.exists():
        sys.exit(f"{recorded} is not there: run `make test` first")
    print(tables(json.loads(recorded.read_text())))
