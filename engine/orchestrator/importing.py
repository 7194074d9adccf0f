"""Import of a published dataset: as a run, whose progress becomes events, and as a command.

``python -m engine.orchestrator.importing`` needs no web application. Progress goes to standard error as JSON
lines ``{"message", "done", "total"}``; the last line of standard output is one line of JSON counts. Exit code
2 and one line on standard error tell why nothing was imported.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from engine.config.base import config_error, parse_settings
from engine.config.importing import FORMATS, ImportConfig
from engine.config.run import ImportRun, with_overrides
from engine.datasets.importers.rejects import describe_rejects
from engine.datasets.importers.run import ImportResult, ImportStopped, import_dataset
from engine.errors import TrainyardError
from engine.grading.gradable import check_gradable
from engine.orchestrator.context import RunContext, RunResult
from engine.orchestrator.setup import announce
from engine.types import TaskRow


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
        DatasetError: nothing can be imported; says why.
        PreflightError: a library or the hub is missing.
    """
    announce(run)
    try:
        result = await asyncio.to_thread(
            import_dataset,
            config.importing,
            home=run.home,
            gradable=obstacle,
            report=run.progress,
            must_end=lambda: run.must_end,
        )
    except ImportStopped:
        run.check()
        raise
    if result.rejected:
        run.alert(
            "warning",
            "rows_rejected",
            f"{result.rejected} of {result.read} rows could not be imported and are listed with the dataset; "
            f"the first: {describe_rejects(result.first_rejects)}",
        )
    if result.ungradable:
        run.alert(
            "warning",
            "rows_ungradable",
            f"patches for {result.ungradable} of {result.imported} rows cannot be graded here: "
            f"{_reasons(result)}",
        )
    counts = result.counts()
    del counts["ungradable_by"]
    first_rejects = counts.pop("first_rejects")
    named = {
        f"{fate}_{name}": number
        for fate in ("excluded", "rejected")
        for name, number in counts.pop(f"{fate}_by").items()
    }
    if first_rejects:
        named["first_rejects"] = describe_rejects(first_rejects)
    return RunResult(state="succeeded", summary={**counts, **named})


def _reasons(result: ImportResult) -> str:
    return "; ".join(f"{reason} ({number})" for reason, number in result.ungradable_by.items())


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
    if result.ungradable:
        _report(f"not gradable: {_reasons(result)}", 0, 0)
    for reject in result.first_rejects:
        _report(f"rejected: {describe_rejects([reject])}", 0, 0)
    sys.stdout.write(json.dumps(result.counts()) + "\n")
    return 0


def _report(message: str, done: int, total: int) -> None:
    sys.stderr.write(json.dumps({"message": message, "done": done, "total": total}) + "\n")
    sys.stderr.flush()


def _failed(reason: str) -> int:
    sys.stderr.write(f"{reason}\n")
    return 2


def _stop_on_signals() -> list[int]:
    """Return a list filled by the first signal, so that the import ends between two rows."""
    seen: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _frame: seen.append(got))
    return seen


if __name__ == "__main__":
    sys.exit(main())
