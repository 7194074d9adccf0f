"""Plans of runs for the form, the API and the command, calibrated by finished runs in the database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from django.db.models import Avg, FloatField, Q, QuerySet, StdDev
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Ln

from engine.config.run import AnyRun, TrainRun, parse_run_config
from engine.errors import ConfigError
from engine.planning import Basis, RunPlan, gather_assumptions, parse_hardware, plan_run
from engine.planning.assumptions import Measured
from engine.planning.calibration import RunRecord, gpu_of, measured_speed, measured_work, same_settings
from engine.planning.hardware import Gpu, Hardware
from engine.planning.plan import planned_gpu, train_run
from engine.planning.typical import typical_assumptions
from engine.types import RunKind, RunState
from webapp.rollouts.models.trajectories import Trajectory
from webapp.runs.models.iterations import Iteration
from webapp.runs.models.runs import Run

_MAX_RUNS = 20
"""Greatest number of a model's finished runs that are searched, newest first."""


def plan(config: AnyRun, *, gpus: str | None, assumptions: Mapping[str, Any]) -> RunPlan:
    """Return the plan of a configuration.

    Args:
        config: of a run of kind ``train``.
        gpus: ``COUNTxNAME``; None: as many as the run needs.
        assumptions: values that replace defaults and measurements, by name.

    Raises:
        ConfigError: unknown GPUs or assumptions, or a configuration that cannot be planned.
    """
    config = train_run(config)
    hardware = parse_hardware(gpus) if gpus else None
    return plan_run(config, hardware=hardware, basis=basis_of(config, hardware, assumptions))


def basis_of(config: TrainRun, hardware: Hardware | None, given: Mapping[str, Any]) -> Basis:
    """Return the assumptions of a plan. Raises ConfigError as ``plan``."""
    measured = typical_assumptions(config) | _measured(config, planned_gpu(config, hardware))
    return gather_assumptions(measured, given)


def _measured(config: TrainRun, gpu: Gpu) -> dict[str, Measured]:
    """Return measurements of the newest finished runs of the same model: work, and speed on the GPU."""
    runs = list(_finished(config))
    work = next((run for run in runs if run.config["dataset"]["name"] == config.dataset.name), None)
    speed = next(
        (
            run
            for run in runs
            if gpu_of(str(run.summary.get("device", ""))) == gpu and same_settings(config, run.config)
        ),
        None,
    )
    return (_speed(speed.pk) if speed else {}) | (_work(work.pk) if work else {})


def _finished(config: TrainRun) -> Iterator[Run]:
    """Yield finished runs of the same model, newest first."""
    runs: QuerySet[Run] = Run.objects.filter(
        kind=RunKind.TRAIN.value,
        state=RunState.SUCCEEDED.value,
        config__policy__checkpoint=config.policy.checkpoint,
    )
    yield from runs.order_by("-pk")[:_MAX_RUNS]


@cache
def _work(run: int) -> dict[str, Measured]:
    record = _record(run)
    return measured_work(record) if record else {}


@cache
def _speed(run: int) -> dict[str, Measured]:
    """Return a finished run's speeds; empty where its configuration is of another version."""
    row, record = Run.objects.get(pk=run), _record(run)
    gpu = gpu_of(str(row.summary.get("device", "")))
    try:
        config = train_run(parse_run_config(row.config))
        return measured_speed(record, config, gpu) if record and gpu else {}
    except ConfigError:
        return {}


def _record(run: int) -> RunRecord | None:
    """Return the means of a run's training rollouts; None where one is unknown."""
    rollouts = Trajectory.objects.filter(
        run=run, phase="train", state=Trajectory.State.FINISHED, num_steps__gt=0
    ).aggregate(
        context_spread=StdDev(Ln("context_tokens")),
        context_tokens=Avg("context_tokens"),
        steps=Avg("num_steps"),
        generated_tokens=Avg("generated_tokens"),
        tool_s=Avg("tool_seconds"),
        tool_spread=StdDev(Ln("tool_seconds"), filter=Q(tool_seconds__gt=0)),
        start_s=Avg("start_seconds") + Avg("pull_seconds"),
        solve_rate=Avg("reward"),
        model_s=Avg("model_seconds"),
    )
    iterations = Iteration.objects.filter(run=run).aggregate(
        prompt_tokens=_metric("tokens/prompt_mean"),
        grading_s=_metric("time/tests_mean"),
        update_s=_metric("time/update"),
    )
    groups = Iteration.objects.filter(run=run).aggregate(partial_share=_metric("solve/partial"))
    no_tools = {"tool_spread": rollouts["tool_spread"] or 0.0}
    values = {**rollouts, **iterations, **no_tools}
    if any(value is None for value in values.values()):
        return None
    return RunRecord(origin=f"run {run}", **values, **groups)


def _metric(name: str) -> Avg:
    return Avg(Cast(KeyTextTransform(name, "metrics"), FloatField()))
