"""Grading of a predictions file through the sandbox pool, with reports in the official harness's formats.

    OUTPUT/logs/run_evaluation/<run>/<model>/<instance>/{test_output.txt,patch.diff,report.json,
        run_instance.log,inputs.json}
    OUTPUT/<model>.<run>.json     the run report, schema_version 2

As in the harness, an instance without a report is an error, not a failure: a patch that did not apply, tests
that hit their deadline, infrastructure. An existing report with the same inputs (``inputs.json``: task and
tests, patch, settings, grader) is reused, so a killed command can be resumed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from engine.config.base import Section, config_error, parse_settings
from engine.config.rollout import GradingConfig
from engine.config.run import with_overrides
from engine.config.sandbox import SandboxConfig
from engine.datasets.health import row_content
from engine.datasets.importers.rejects import FIRST_REJECTS
from engine.datasets.store import dataset_path, load_dataset
from engine.errors import DatasetError, HostileInputError
from engine.events import harness
from engine.events.harness import Prediction
from engine.files import atomic_write
from engine.grading.counterfactual.store import FileReferences
from engine.grading.grader import GRADER_VERSION, Grader
from engine.grading.logs import swebench
from engine.grading.official import multi_swe_reports
from engine.grading.official.prediction_files import GOLD, read_predictions
from engine.grading.official.reports import InstanceResult, run_report
from engine.grading.rules.f2p_p2p import official_report
from engine.isolation import run_isolated
from engine.sandbox.backends import make_backend
from engine.sandbox.pool.pool import SandboxPool
from engine.sandbox.preflight import require
from engine.testing.toolchain import update_toolchains
from engine.types import Grade, GradeRule, TaskRow, Verdict

_SCHEDULING = {
    "grading": {"max_parallel", "reuse_verdicts"},
    "sandbox": {"max_live", "max_starting", "queue_timeout_s", "start_retries"},
}
"""Settings that decide when something is graded, not how."""
_WITHOUT_REPORT = frozenset({Verdict.PATCH_FAILED, Verdict.TEST_TIMEOUT, Verdict.INFRA_ERROR})


class PredictionSettings(Section):
    """Settings of grading predictions."""

    sandbox: SandboxConfig = SandboxConfig()
    grading: GradingConfig = GradingConfig(timeout_s=1800.0)

    @classmethod
    def of(cls, changes: Sequence[str]) -> Self:
        """Return the defaults with ``KEY=VALUE`` changes. Raises ConfigError."""
        try:
            return cls.model_validate(with_overrides(cls().model_dump(mode="json"), parse_settings(changes)))
        except ValidationError as error:
            raise config_error(error) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Inputs and outputs of one grading command."""

    dataset: str
    predictions: str
    """Predictions file, or ``gold``."""
    split: str = ""
    """Split of the dataset; empty for all."""
    run_id: str
    output: Path


async def grade_predictions(
    home: Path, assignment: Assignment, settings: PredictionSettings
) -> dict[str, Any]:
    """Grade every prediction; return the counts and the path of the run report.

    Args:
        home: the data folder.

    Raises:
        DatasetError: the dataset or the predictions are invalid.
        PreflightError: the machine lacks a requirement.
    """
    rows = _rows(home, assignment)
    predictions, rejected = _predictions(rows, assignment.predictions)
    await asyncio.to_thread(update_toolchains, home)
    backend = make_backend(settings.sandbox, home, run_id=assignment.run_id)
    await require(backend)
    pool = SandboxPool(backend, settings.sandbox)
    grader = Grader(
        backend=pool,
        config=settings.grading,
        sandbox=settings.sandbox,
        run_id=assignment.run_id,
        store=FileReferences(dataset_path(home, assignment.dataset)),
    )
    verdicts: Counter[str] = Counter()
    try:
        results = await asyncio.gather(
            *(
                _grade(grader, rows[prediction.instance_id], prediction, assignment, settings, verdicts)
                for prediction in predictions.values()
                if prediction.model_patch
            )
        )
    finally:
        await pool.close()
    report = run_report(list(rows), predictions, {result.instance_id: result for result in results})
    return {**_written(report, rows, predictions, verdicts, assignment), **_rejected(rejected)}


def _rows(home: Path, assignment: Assignment) -> dict[str, TaskRow]:
    dataset = load_dataset(home, assignment.dataset)
    rows = dataset.split(assignment.split) if assignment.split else dataset.rows
    if not rows:
        raise DatasetError(f"dataset '{assignment.dataset}' in {dataset_path(home, '')} has no rows")
    return {row.task.instance_id: row for row in rows}


def _predictions(rows: Mapping[str, TaskRow], source: str) -> tuple[dict[str, Prediction], tuple[str, ...]]:
    """Return the predictions by instance, and the reasons why others were rejected."""
    if source == GOLD:
        gold = {
            name: Prediction(instance_id=name, model_name_or_path=GOLD, model_patch=row.answer.gold_patch)
            for name, row in rows.items()
        }
        return gold, ()
    file = read_predictions(Path(source), rows)
    return {prediction.instance_id: prediction for prediction in file.predictions}, file.rejected


def _rejected(rejected: Sequence[str]) -> dict[str, Any]:
    return {"rejected": len(rejected), "first_rejects": list(rejected[:FIRST_REJECTS])}


async def _grade(
    grader: Grader,
    row: TaskRow,
    prediction: Prediction,
    assignment: Assignment,
    settings: PredictionSettings,
    verdicts: Counter[str],
) -> InstanceResult:
    folder = _folder(assignment, prediction)
    name = prediction.instance_id
    patch = (prediction.model_patch or "").encode("utf-8", "surrogateescape")
    if not patch.strip():  # as in the harness, not an empty patch but one that does not apply
        verdicts[Verdict.PATCH_FAILED] += 1
        return InstanceResult(instance_id=name, report=None)
    inputs = await asyncio.to_thread(_inputs, row, patch, settings)
    if (known := await asyncio.to_thread(_known, folder, name, inputs)) is not None:
        verdicts["known"] += 1
        report, log = known
        return InstanceResult(instance_id=name, report=report, failure=await _failure(log))
    await asyncio.to_thread(_begin, folder, patch, inputs)
    try:
        grade = await grader.grade(row, prediction.model_patch or "", evaluation=True)
    except DatasetError as error:
        verdicts["ungradable"] += 1
        return InstanceResult(instance_id=name, report=None, failure=await _failure(str(error)))
    verdicts[grade.verdict] += 1
    await asyncio.to_thread(
        _write, folder / "run_instance.log", f"{grade.verdict}: {grade.detail}\n".encode()
    )
    log = await asyncio.to_thread(_whole_log, grade)
    if grade.verdict is Verdict.TEST_TIMEOUT:
        log += f"\n\nTimeout error: {grader.timeout_s(row, evaluation=True):.0f} seconds exceeded."
    await asyncio.to_thread(_write, folder / "test_output.txt", log.encode("utf-8", "replace"))
    if grade.verdict in _WITHOUT_REPORT:
        failure = await _failure(f"{log}\n{grade.detail}")
        return InstanceResult(instance_id=name, report=None, failure=failure)
    report = await _report(row, grade, log)
    text = json.dumps({name: report}, indent=4)
    await asyncio.to_thread(_write, folder / "report.json", text.encode())
    if multi_swe_reports.is_multi_swe(row):
        await _write_multi_swe(folder / "multi_swe_report.json", row, grade, log)
    return InstanceResult(instance_id=name, report=report, failure=await _failure(log))


async def _write_multi_swe(path: Path, row: TaskRow, grade: Grade, log: str) -> None:
    """Write the report of Multi-SWE's own harness beside the official one; none for a log beyond limits."""
    grade = replace(grade, log="", whole_log=b"")
    try:
        report = await run_isolated(partial(multi_swe_reports.instance_report, row, grade, log))
    except HostileInputError:
        return
    await asyncio.to_thread(_write, path, json.dumps(report).encode())


async def _failure(log: str) -> tuple[str, str] | None:
    try:
        return await run_isolated(partial(swebench.classify_failure, log))
    except HostileInputError:
        return None


async def _report(row: TaskRow, grade: Grade, log: str) -> dict[str, Any]:
    """Return ``instance_report``, or ``plain_report`` if the log cannot be parsed within limits."""
    grade = replace(grade, log="", whole_log=b"")
    try:
        return await run_isolated(partial(instance_report, row, grade, log))
    except HostileInputError:
        return plain_report(grade)


def _whole_log(grade: Grade) -> str:
    return zlib.decompress(grade.whole_log).decode("utf-8", "replace") if grade.whole_log else grade.log


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def instance_report(row: TaskRow, grade: Grade, log: str) -> dict[str, Any]:
    """Return the official per-instance report of a grade; from the log if the rule uses one.

    A verdict other than ``passed`` is never reported as resolved, whatever the log shows.
    """
    if row.answer.grade_rule is GradeRule.F2P_P2P and row.answer.log_parser:
        report = official_report(row, log)
        return {**report, "resolved": report["resolved"] and grade.verdict is Verdict.PASSED}
    return plain_report(grade)


def plain_report(grade: Grade) -> dict[str, Any]:
    """Return the official per-instance report built from the outcomes in a grade."""
    return harness.instance_report(grade.tests, resolved=grade.verdict is Verdict.PASSED)


def _inputs(row: TaskRow, patch: bytes, settings: PredictionSettings) -> dict[str, Any]:
    """Return all inputs of a verdict, as JSON data."""
    return {
        "task": row_content(row),
        "patch": hashlib.sha256(patch).hexdigest(),
        "settings": settings.model_dump(mode="json", exclude=_SCHEDULING),
        "grader": GRADER_VERSION,
    }


def _begin(folder: Path, patch: bytes, inputs: Mapping[str, Any]) -> None:
    """Remove the reports of earlier gradings and write the inputs of a new one."""
    for name in ("report.json", "multi_swe_report.json"):
        (folder / name).unlink(missing_ok=True)
    _write(folder / "patch.diff", patch)
    _write(folder / "inputs.json", json.dumps(inputs, indent=4).encode())


def _known(folder: Path, name: str, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], str] | None:
    """Return report and log of an earlier command; None without one of the same inputs."""
    try:
        if json.loads((folder / "inputs.json").read_bytes()) != inputs:
            return None
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))[name]
        log = (folder / "test_output.txt").read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError, KeyError):
        return None
    return report, log


def _plain(name: str) -> str:
    """Return the name of a model or instance as a single path component."""
    return re.sub(r"[^A-Za-z0-9._+=@-]", "_", name.replace("/", "__")).lstrip(".") or "_"


def _folder(assignment: Assignment, prediction: Prediction) -> Path:
    logs = assignment.output / "logs" / "run_evaluation" / assignment.run_id
    return logs / _plain(prediction.model_name_or_path) / _plain(prediction.instance_id)


def _written(
    report: Mapping[str, Any],
    rows: Mapping[str, TaskRow],
    predictions: Mapping[str, Prediction],
    verdicts: Mapping[str, int],
    assignment: Assignment,
) -> dict[str, Any]:
    model = next(iter(predictions.values())).model_name_or_path
    path = assignment.output / f"{_plain(model)}.{assignment.run_id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, json.dumps(report, indent=4))
    if all(map(multi_swe_reports.is_multi_swe, rows.values())):
        ids = {name: report[f"{name}_ids"] for name in harness.OUTCOMES}
        final = json.dumps(multi_swe_reports.final_report(rows, ids), indent=4)
        atomic_write(path.with_suffix(".final_report.json"), final)
    names: Sequence[str] = ("submitted", "completed", "resolved", "unresolved", "empty_patch", "error")
    return {
        "dataset": assignment.dataset,
        "instances": report["total_instances"],
        **{name: report[f"{name}_instances"] for name in names},
        "verdicts": dict(sorted(verdicts.items())),
        "report": str(path),
    }
