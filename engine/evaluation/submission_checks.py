"""Checks of a submission folder against the requirements of SWE-bench/experiments.

    python -m engine.evaluation.submission_checks FOLDER

Prints one finding per line. Exit codes: 0 without a finding, 1 with some, 2 if the folder does not exist.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from engine.errors import describe_error
from engine.evaluation.submission import (
    LOG_FILES,
    METADATA,
    PREDICTIONS,
    README,
    SEVERAL_ATTEMPTS,
    file_name,
)
from engine.terminal import visible_line

EXIT_FINDINGS, EXIT_NO_FOLDER = 1, 2
_FOLDER_NAME = re.compile(r"\d{8}_\S+")
_READ = frozenset({PREDICTIONS, METADATA, README})
_TEXTS = {"info.name": str, "info.report": str, "info.site": str, "info.authors": list}
_TAGS = {"tags.model": list, "tags.org": list, "tags.os_model": bool, "tags.os_system": bool}


def check_submission(
    name: str, files: Iterable[tuple[str, bytes]], instances: Iterable[str] | None = None
) -> list[str]:
    """Return the defects of a submission as sentences; empty if there are none.

    Args:
        name: of the folder.
        files: path within the folder and content of each file.
        instances: of the benchmark's split; None skips the search for missing ones.
    """
    texts: dict[str, bytes] = {}
    reports: dict[str, bytes] = {}
    paths: set[str] = set()
    for path, content in files:
        if content.strip():
            paths.add(path)
        if path in _READ:
            texts[path] = content
        elif path.endswith("/report.json"):
            reports[path] = content
    findings = []
    if not _FOLDER_NAME.fullmatch(name):
        findings.append(f"the folder is called '{name}'; call it YYYYMMDD_NAME")
    findings += [f"{path} is missing or empty" for path in sorted(_READ - paths)]
    predictions, problems = _predictions(texts.get(PREDICTIONS, b""))
    findings += problems
    findings += _metadata_findings(texts[METADATA]) if METADATA in paths else []
    if README in paths and b"- [ ]" in texts[README]:
        findings.append(f"{README} has unconfirmed statements in its checklist")
    findings += _coverage(predictions, instances)
    for instance, patch in sorted(predictions.items()):
        findings += _instance_findings(instance, patch, paths, reports)
    traces = {name for path in paths if path.startswith("trajs/") for name in _names(path)}
    untraced = [instance for instance in predictions if file_name(instance) not in traces]
    if untraced:
        findings.append(
            f"instances without a reasoning trace in trajs/: {len(untraced)}, such as {min(untraced)}"
        )
    unreported = [
        key for key, patch in predictions.items() if patch.strip() and _report_path(key) not in paths
    ]
    if unreported:
        findings.append(
            f"patches without a report.json, which count as unresolved: {len(unreported)}, such as "
            f"{min(unreported)}'s"
        )
    return findings


def _names(path: str) -> Iterator[str]:
    """Yield the names in a path, those of files also without their suffix."""
    yield from PurePosixPath(path).parts
    yield PurePosixPath(path).stem


def _report_path(instance: str) -> str:
    return f"logs/{file_name(instance)}/report.json"


def _predictions(content: bytes) -> tuple[dict[str, str], list[str]]:
    """Return the patches by instance, and the problems of the predictions."""
    patches: dict[str, str] = {}
    problems: list[str] = []
    models: Counter[str] = Counter()
    for number, line in enumerate(io.BytesIO(content), start=1):  # ends lines at \n alone
        try:
            instance, model, patch = _prediction(line)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            problems.append(f"{PREDICTIONS}, line {number}: not a prediction ({describe_error(error)})")
            continue
        if instance in patches:
            problems.append(f"{PREDICTIONS} predicts {instance} more than once; submit one patch of it")
        patches[instance] = patch
        models[model] += 1
    if len(models) > 1:
        problems.append(f"{PREDICTIONS} names {len(models)} models: {', '.join(sorted(models))}; name one")
    return patches, problems


def _prediction(line: bytes) -> tuple[str, str, str]:
    """Return instance, model and patch. Raises ValueError, TypeError, KeyError, RecursionError."""
    row = json.loads(line.decode("utf-8", "replace"))
    instance, model, patch = row["instance_id"], row["model_name_or_path"], row["model_patch"]
    patch = "" if patch is None else patch
    if not (isinstance(instance, str) and isinstance(model, str) and isinstance(patch, str)):
        raise TypeError("instance_id, model_name_or_path and model_patch must be strings")
    return instance, model, patch


def _metadata_findings(content: bytes) -> Iterator[str]:
    try:
        data = yaml.safe_load(content)
    except (yaml.YAMLError, RecursionError) as error:
        yield f"{METADATA} is not YAML: {str(error).splitlines()[0]}"
        return
    for field, kind in {**_TEXTS, **_TAGS}.items():
        value = _at(data, field)
        if not isinstance(value, kind):
            yield f"{METADATA}: {field} is missing or no {kind.__name__}"
        elif isinstance(value, str | list) and not any(value):
            yield f"{METADATA}: {field} is empty"
    for field in ("info.report", "info.site"):
        value = _at(data, field)
        if isinstance(value, str) and value and not re.match(r"https?://\S+$", value):
            yield f"{METADATA}: {field} is '{value}'; give an address that begins with https://"
    if str(_at(data, "tags.system.attempts")) not in ("1", SEVERAL_ATTEMPTS):
        yield f"{METADATA}: tags.system.attempts is neither '1' nor '{SEVERAL_ATTEMPTS}'"


def _at(data: Any, field: str) -> Any:
    for part in field.split("."):
        data = data.get(part) if isinstance(data, Mapping) else None
    return data


def _coverage(predictions: Mapping[str, str], instances: Iterable[str] | None) -> Iterator[str]:
    if not predictions:
        yield "there is no prediction"
    if instances is None:
        return
    known = set(instances)
    for names, problem in (
        (known - predictions.keys(), "instances of the split without a prediction"),
        (predictions.keys() - known, "predictions of no instance of the split"),
    ):
        if names:
            yield f"{problem}: {len(names)}, such as {min(names)}"


def _instance_findings(
    instance: str, patch: str, paths: set[str], reports: Mapping[str, bytes]
) -> Iterator[str]:
    if not patch.strip():
        return
    name = file_name(instance)
    missing = [log for log in LOG_FILES if f"logs/{name}/{log}" not in paths]
    if missing:
        yield f"{instance} has no {' and no '.join(missing)} in logs/"
    if _report_path(instance) in paths:
        try:
            outcome = json.loads(reports[_report_path(instance)])[instance]["resolved"]
        except (ValueError, TypeError, KeyError, RecursionError):
            outcome = None
        if not isinstance(outcome, bool):
            yield f"{instance}'s report.json does not say whether it is resolved"


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m engine.evaluation.submission_checks", description="Check a submission folder."
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder.resolve()
    if not folder.is_dir():
        print(f"error: there is no folder {folder}", file=sys.stderr)
        return EXIT_NO_FOLDER
    findings = check_submission(folder.name, _files(folder))
    print("\n".join(map(visible_line, findings)) or "nothing is missing")
    return EXIT_FINDINGS if findings else 0


if __name__ == "__main__":
    sys.exit(main())
