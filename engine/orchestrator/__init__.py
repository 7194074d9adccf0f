"""Execution of runs: one module per kind of run, each with a function ``async (config, run) -> RunResult``.

``execute`` runs any of them to its terminal event. Kinds are imported when they run: curating a
dataset must not load torch. To add a kind: a module here, a configuration in ``engine.config.run``,
an entry in ``_KINDS``.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Awaitable, Callable, Mapping

import structlog

from engine.config.run import (
    AnyRun,
    CommitCurateRun,
    CurateRun,
    EvaluateRun,
    FineTuneRun,
    HardenRun,
    ImportRun,
    ImproveRun,
    JudgeTrainingRun,
    RegradeRun,
    RolloutRun,
    SftRun,
    TestVerifierRun,
    TrainRun,
    ValidateRun,
    VerifierRun,
)
from engine.errors import FencedError, RankLostError, SpendLimitError, TrainyardError, describe_error
from engine.events.types import RunFinished
from engine.files import atomic_write
from engine.garbage import collect_rarely
from engine.orchestrator.context import RunContext, RunResult, RunStopped
from engine.redaction import redact

EXIT_OK, EXIT_FAILED, EXIT_FENCED, EXIT_LOST = 0, 1, 3, 4
FAILURE_NAME = "failure.json"
"""File in the run folder after a failure: ``{"epoch", "reason"}``, in case the event cannot be delivered."""

_KINDS: Mapping[type[AnyRun], str] = {
    TrainRun: "engine.orchestrator.train:train",
    ImproveRun: "engine.orchestrator.improvement.loop:improve",
    RolloutRun: "engine.orchestrator.collect:rollout",
    EvaluateRun: "engine.orchestrator.collect:evaluate",
    SftRun: "engine.orchestrator.sft:warm_start",
    FineTuneRun: "engine.orchestrator.fine_tune:fine_tune",
    CurateRun: "engine.orchestrator.curate:make_dataset",
    CommitCurateRun: "engine.orchestrator.curate:make_dataset_of_commits",
    HardenRun: "engine.orchestrator.harden:harden",
    JudgeTrainingRun: "engine.orchestrator.verification.train_judge:train_judge",
    VerifierRun: "engine.orchestrator.verification.verify:verify",
    TestVerifierRun: "engine.orchestrator.verification.verify_by_tests:verify_by_tests",
    ImportRun: "engine.orchestrator.importing:import_set",
    RegradeRun: "engine.orchestrator.regrading.regrade:regrade",
    ValidateRun: "engine.orchestrator.validate:validate_dataset",
}

log = structlog.get_logger("orchestrator")


def execute(config: AnyRun, run: RunContext) -> int:
    """Perform a run to its end, handle every failure, and record the result.

    Returns:
        The process's exit code: 0 succeeded or stopped, 1 failed, 3 fenced, 4 lost to infrastructure: no
        terminal event was written, so that another attempt can continue.
    """
    try:
        _function(config)
        collect_rarely()
        outcome = asyncio.run(perform(config, run))
    except FencedError as error:
        log.warning("fenced", reason=str(error))
        return EXIT_FENCED
    except (RunStopped, SpendLimitError) as stop:
        outcome = RunResult.of_stop(stop)
    except RankLostError as error:
        if run.is_relaunched:
            log.error("attempt_lost", reason=str(error))
            return EXIT_LOST
        log.exception("run_failed")
        outcome = RunResult(state="failed", reason=str(error))
    except TrainyardError as error:
        log.exception("run_failed")
        outcome = RunResult(state="failed", reason=str(error))
    except Exception as error:
        log.exception("run_failed")
        outcome = RunResult(state="failed", reason=describe_error(error))
    return record(run, outcome)


async def perform(config: AnyRun, run: RunContext) -> RunResult:
    """Perform a run in the current event loop, e.g. that of a notebook.

    Raises:
        RunStopped, TrainyardError: the run ended early; no terminal event was written.
    """
    function = _function(config)
    async with run.closing, run.probe:
        try:
            return await function(config, run)
        finally:
            log.info("event_loop", **run.probe.whole.metrics())


def _function(config: AnyRun) -> Callable[[AnyRun, RunContext], Awaitable[RunResult]]:
    """Import the function that performs a run of this kind."""
    module, _, name = _KINDS[type(config)].partition(":")
    function: Callable[[AnyRun, RunContext], Awaitable[RunResult]] = getattr(
        importlib.import_module(module), name
    )
    return function


def note_failure(run: RunContext, reason: str) -> None:
    """Write the failure's reason into the run folder."""
    note = {"epoch": run.epoch, "reason": redact(reason)}
    try:
        atomic_write(run.run_dir / FAILURE_NAME, json.dumps(note) + "\n")
    except OSError:
        log.exception("failure_not_noted", reason=reason)


def record(run: RunContext, outcome: RunResult) -> int:
    """Write the terminal event; return the process's exit code."""
    log.info("run_finished", state=outcome.state, reason=outcome.reason, **outcome.summary)
    if outcome.state == "failed":
        note_failure(run, outcome.reason)
    try:
        run.sink.emit(RunFinished, state=outcome.state, reason=outcome.reason[:2000], summary=outcome.summary)
    except FencedError:
        return EXIT_FENCED
    except OSError as error:
        log.exception("run_finished_not_recorded")
        note_failure(run, str(error))
        return EXIT_FAILED
    return EXIT_FAILED if outcome.state == "failed" else EXIT_OK
