"""Imports a published set; its progress becomes events."""

from __future__ import annotations

import asyncio

from engine.config.run import ImportRun
from engine.datasets.importers.run import ImportStopped, import_dataset
from engine.orchestrator.context import Outcome, RunContext
from engine.orchestrator.stage import announce


async def import_set(config: ImportRun, run: RunContext) -> Outcome:
    """Import the configured source. A stopped or killed run shows nothing and goes on where it was.

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
            f"{result.rejected} of {result.read} rows could not be imported: see the list with the dataset",
        )
    counts = result.counts()
    excluded_by = counts.pop("excluded_by")
    named = {f"excluded_{name}": number for name, number in excluded_by.items()}
    return Outcome(state="succeeded", summary={**counts, **named})
