"""Predictions and reports in the official harness's formats.

A per-instance report is the one that ``swebench`` writes beside a test log; a run report is its
``schema_version`` 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.datasets.importers.fields import structure
from engine.datasets.importers.formats import swe_smith
from engine.datasets.importers.formats.evalscript import FAIL_ONLY, find_spec
from engine.errors import DatasetError
from engine.events import harness
from engine.events.harness import Prediction
from engine.grading.logs import swebench
from engine.grading.logs.parsers import find_parser
from engine.reading import parse_json


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceResult:
    """Result of one prediction."""

    instance_id: str
    report: Mapping[str, Any] | None
    """Per-instance report; None when grading did not finish (a timeout, infrastructure)."""
    failure: tuple[str, str] | None = None
    """Reason and tier of an infrastructure failure, from ``swebench.classify_failure``."""


def regrade(row: Mapping[str, Any], log: str) -> dict[str, Any]:
    """Return the official per-instance report of a stored log, without a sandbox.

    Args:
        row: needs ``instance_id``, ``FAIL_TO_PASS``, ``PASS_TO_PASS`` (lists, or JSON or Python text) and
            ``log_parser``, which may be in ``install_config``, or follow from ``repo`` and ``version``.
            ``eval_type`` and ``model_patch`` are used if present. Letter case of keys does not matter.
        log: the test log with its markers.

    Raises:
        DatasetError: a field is missing or malformed, the parser is unknown, or the harness's parser fails.
    """
    fields = {key.lower(): value for key, value in row.items()}
    repo, version = str(fields.get("repo") or ""), str(fields.get("version") or "")
    parser_name = str(_needed({**fields, "log_parser": _parser(fields, repo, version)}, "log_parser"))
    parser = find_parser(parser_name)
    eval_type = str(fields.get("eval_type") or "")
    if not eval_type:
        eval_type = swebench.FAIL_ONLY if repo in FAIL_ONLY else swebench.PASS_AND_FAIL
    if eval_type not in (swebench.PASS_AND_FAIL, swebench.FAIL_ONLY):
        raise DatasetError(
            f"field 'eval_type' is '{eval_type}'; it is {swebench.PASS_AND_FAIL} or {swebench.FAIL_ONLY}"
        )
    instance = swebench.Instance(
        instance_id=str(_needed(fields, "instance_id")),
        repo=repo,
        version=version,
    )
    lists = {name: _test_names(fields, name) for name in ("fail_to_pass", "pass_to_pass")}
    try:
        report = swebench.instance_report(
            log,
            instance=instance,
            parser_name=parser_name,
            parser=parser,
            eval_type=eval_type,
            model_patch=fields.get("model_patch", ""),
            **lists,
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DatasetError(f"the log parser '{parser_name}' fails on this log or row: {error!r}") from error
    return {instance.instance_id: report}


def regrade_files(row_path: Path, log_path: Path) -> dict[str, Any]:
    """Apply ``regrade`` to a row and a log in files.

    Raises:
        DatasetError: as ``regrade``, or a file cannot be read or does not hold one row.
    """
    try:
        row = parse_json(row_path.read_text(encoding="utf-8-sig"))
        log = log_path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise DatasetError(f"cannot read {error.filename}: {error.strerror}") from None
    except ValueError as error:
        raise DatasetError(f"{row_path} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise DatasetError(f"{row_path} does not hold one row (a JSON object)")
    return regrade(row, log)


def _needed(fields: Mapping[str, Any], name: str) -> Any:
    if fields.get(name) in (None, ""):
        raise DatasetError(
            f"the row has no '{name}'; it needs instance_id, FAIL_TO_PASS, PASS_TO_PASS, log_parser"
        )
    return fields[name]


def _parser(fields: Mapping[str, Any], repo: str, version: str) -> Any:
    """Return the row's parser: its own, that of its installation config, or that of its dataset."""
    config = structure(fields.get("install_config"))
    spec = find_spec(repo, version)
    return (
        fields.get("log_parser")
        or (config.get("log_parser") if isinstance(config, dict) else "")
        or (spec.parser if spec is not None else "")
        or (swe_smith.PARSER if repo.startswith("swesmith/") else "")
    )


def _test_names(fields: Mapping[str, Any], name: str) -> list[str]:
    given = fields.get(name)
    value = structure(given)
    if value is None and isinstance(given, str):
        raise DatasetError(f"field '{name.upper()}' is text, but neither a JSON nor a Python list")
    if not isinstance(value, list | tuple) or not all(isinstance(test, str) for test in value):
        raise DatasetError(f"field '{name.upper()}' is not a list of test names")
    return list(value)


def run_report(
    instance_ids: Sequence[str],
    predictions: Mapping[str, Prediction],
    results: Mapping[str, InstanceResult],
) -> dict[str, Any]:
    """Return the harness's run report, ``schema_version`` 2.

    Args:
        instance_ids: the whole dataset.
        predictions: by instance id.
        results: of every prediction that is not empty, by instance id.
    """
    ids = {name: set[str]() for name in harness.OUTCOMES}
    reasons: dict[str, str] = {}
    for instance_id in instance_ids:
        if instance_id not in predictions:
            ids["incomplete"].add(instance_id)
        elif not predictions[instance_id].model_patch:
            ids["empty_patch"].add(instance_id)
        else:
            _count(instance_id, results.get(instance_id), ids, reasons)
    ids["submitted"] = set(predictions)
    return harness.run_report(total=len(instance_ids), ids=ids, reasons=reasons)


def _count(
    instance_id: str, result: InstanceResult | None, ids: dict[str, set[str]], reasons: dict[str, str]
) -> None:
    if result is None or result.report is None:
        ids["error"].add(instance_id)
    else:
        ids["completed"].add(instance_id)
        if result.report["resolved"]:
            ids["resolved"].add(instance_id)
            return
        ids["unresolved"].add(instance_id)
    if result is not None and result.failure is not None:
        reasons[instance_id], tier = result.failure
        ids["infra_failure" if tier == "environment" else "ambiguous_failure"].add(instance_id)
