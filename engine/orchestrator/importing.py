"""Import of a published dataset: as a run, whose progress becomes events, and as a command.

``python -m engine.orchestrator.importing`` needs no web application. Progress goes to standard error as JSON
lines ``{"message", "done", "total"}``; the last line of standard output is one line of JSON counts. After a
failure the exit code is 2 and one line on standard error has the reason.

A run executes this command in a separate process: a slow download, parquet page or row blocks neither its
event loop nor its stop, and the kernel limits the memory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engine.config.base import config_error, parse_settings
from engine.config.importing import FORMATS, ImportConfig
from engine.config.run import ImportRun, with_overrides
from engine.datasets.importers.rejects import describe_rejects
from engine.datasets.importers.run import import_dataset
from engine.errors import DatasetError, TrainyardError
from engine.grading.gradable import check_gradable
from engine.orchestrator.context import RunContext, RunResult
from engine.orchestrator.setup import announce
from engine.processes.guarded import guarded_command
from engine.types import TaskRow

MEMORY_BYTES = 256 << 20
"""Limit of the memory that an import allocates."""
STOP_S = 2
"""Time in which a stopped import may end between two rows, seconds."""
_MAX_LINE = 1 << 20


def obstacle(row: TaskRow) -> str:
    """Return the reason why patches for a row cannot be graded on this installation; empty when they can."""
    try:
        check_gradable(row)
    except TrainyardError as error:
        return str(error)
    return ""


async def import_set(config: ImportRun, run: RunContext) -> RunResult:
    """Import the configured source. An interrupted run publishes nothing and can be resumed.

    Raises:
        DatasetError: nothing can be imported; the message has the reason.
        RunStopped: the run was stopped.
    """
    announce(run)
    counts = await run.interruptible(_import_apart(config.importing, run))
    first_rejects = counts.pop("first_rejects")
    if counts["rejected"]:
        run.alert(
            "warning",
            "rows_rejected",
            f"{counts['rejected']} of {counts['read']} rows could not be imported and are listed with the "
            f"dataset; the first: {describe_rejects(first_rejects)}",
        )
    ungradable_by = counts.pop("ungradable_by")
    if counts["ungradable"]:
        run.alert(
            "warning",
            "rows_ungradable",
            f"patches for {counts['ungradable']} of {counts['imported']} rows cannot be graded here: "
            + "; ".join(f"{reason} ({number})" for reason, number in ungradable_by.items()),
        )
    named = {
        f"{fate}_{name}": number
        for fate in ("excluded", "rejected")
        for name, number in counts.pop(f"{fate}_by").items()
    }
    if first_rejects:
        named["first_rejects"] = describe_rejects(first_rejects)
    return RunResult(state="succeeded", summary={**counts, **named})


async def _import_apart(config: ImportConfig, run: RunContext) -> dict[str, Any]:
    """Import in a separate process and return its counts; end it within ``STOP_S`` seconds if cancelled.

    Raises:
        DatasetError: the process failed, and the message is its last line, or it was killed.
    """
    command = [
        sys.executable,
        "-m",
        __name__,
        "--format",
        config.format,
        "--name",
        config.output,
        "--home",
        str(run.home),
    ]
    for name, value in config.model_dump(mode="json", exclude={"format", "output", "source"}).items():
        command += ["--set", f"{name}={json.dumps(value)}"]
    process = await asyncio.create_subprocess_exec(
        *guarded_command([*command, "--", config.source]),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        start_new_session=True, limit=_MAX_LINE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    last = ""
    try:
        printed = asyncio.ensure_future(process.stdout.read())
        async for line in process.stderr:
            text = line.decode(errors="replace").strip()
            try:
                report = json.loads(text)
                progress = report["message"], report["done"], report["total"]
            except (ValueError, KeyError, TypeError):
                last = text or last
            else:
                run.progress(*progress)
        status = await process.wait()
        if status < 0:  # its last line may be any warning
            words = f"; its last line was '{last}'" if last else ""
            raise DatasetError(
                f"the import process was killed by signal {-status}{words}. Repeat the import to resume it."
            )
        if status:
            raise DatasetError(last or f"the import process ended with exit code {status}")
        counts: dict[str, Any] = json.loads((await printed).splitlines()[-1])
        return counts
    except asyncio.CancelledError:
        process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_S + 1)
        raise
    finally:
        process.stdin.close()  # makes its guard end all remaining processes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m engine.orchestrator.importing",
        description="Import a published dataset.",
        epilog="formats: " + "; ".join(f"{name}: {about}" for name, about in FORMATS.items()),
    )
    parser.add_argument("--format", required=True, help="one of the formats below")
    parser.add_argument("--name", required=True, help="name of the dataset to make")
    parser.add_argument("--home", type=Path, default=Path(".trainyard"), help="the data folder")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any further setting of an import"
    )
    parser.add_argument("source", help="file, folder, or hf:OWNER/NAME")
    options = parser.parse_args(arguments)
    stop = _stop_on_signals()
    try:
        data = {"format": options.format, "output": options.name, "source": options.source}
        config = ImportConfig.model_validate(with_overrides(data, parse_settings(options.set)))
        result = import_dataset(
            config,
            home=options.home.resolve(),
            gradable=obstacle,
            report=_report,
            must_end=lambda: bool(stop),
        )
    except ValidationError as error:
        return _failed(str(config_error(error)))
    except (TrainyardError, OSError) as error:
        return _failed(str(error))
    sys.stdout.write(json.dumps(result.counts()) + "\n")
    return 0


def _report(message: str, done: int, total: int) -> None:
    sys.stderr.write(json.dumps({"message": message, "done": done, "total": total}) + "\n")
    sys.stderr.flush()


def _failed(reason: str) -> int:
    sys.stderr.write(f"{reason}\n")
    return 2


def _stop_on_signals() -> list[int]:
    """Return a list filled by the first signal, so that the import ends between two rows.

    If the next row takes longer than ``STOP_S`` seconds, the kernel ends the process; the same import later
    continues from its last commit.
    """
    received: list[int] = []

    def stop(number: int, _frame: object) -> None:
        received.append(number)
        signal.alarm(STOP_S)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return received


def _limit_memory() -> None:
    """Limit the memory that this process may allocate from now on."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    hard_limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + MEMORY_BYTES, hard_limit))


if __name__ == "__main__":
    _limit_memory()
    sys.exit(main())
