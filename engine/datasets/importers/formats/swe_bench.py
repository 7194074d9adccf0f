"""SWE-bench: classic rows (full, Lite, Verified, Multilingual, Multimodal), rows of version 5, SWE-Gym rows.

A row of version 5 includes image, test script, parser and kind of evaluation. For a classic row, image and
script are derived from repository and version, as in harness 4.1. Schemas: ``swebench.types``,
``swebench.task``.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from engine.datasets.importers.base import Imported, with_difficulty
from engine.datasets.importers.fields import Row, find, optional_text, select_fields
from engine.datasets.importers.formats.evalscript import FAIL_ONLY, Spec, find_spec, make_script, spec_script
from engine.datasets.importers.formats.swe_row import SweRow, read_row
from engine.errors import DatasetError
from engine.patches.sections import split_patch

WORKDIR = "/testbed"
_MINUTES = {"<15 min fix": 15.0, "15 min - 1 hour": 60.0, "1-4 hours": 240.0, ">4 hours": 480.0}
_GYM_PYTEST = "pytest -rA"
_GYM_COMMANDS = {
    "getmoto/moto": "pytest -n0 -rA",
    "conan-io/conan": "pytest -n0 -rA",
    "dask/dask": "pytest -n0 -rA  --color=no",
    "bokeh/bokeh": "pytest -rA -n0",
    "modin-project/modin": "pytest -n0 -rA",
    "hypothesisworks/hypothesis": "pytest -n0 -rA --tb=no --no-header",
    "pydantic/pydantic": "pytest -rA --tb=short -vv -o console_output_style=classic --no-header",
    "pandas-dev/pandas": "pytest -rA --tb=long",
    "facebookresearch/hydra": "pytest -rA --tb=long",
    "project-monai/monai": "pytest -rA",
    "iterative/dvc": "pytest -rA",
}
"""Test commands of SWE-Gym's fork of the harness; its install commands need a network and are left out."""


def convert(row: Row) -> Imported:
    """Convert a row of any SWE-bench version or its R2E-Gym variant. Raises DatasetError with the field."""
    published = read_row(row)
    version = str(published.metadata.get("version") or "")
    spec = find_spec(published.repo, version)
    script = optional_text(row, "eval_script")
    image = published.image or image_name(published.instance_id)
    ungradable = ""
    if not script and spec is not None:
        script = spec_script(
            spec,
            repo=published.repo,
            workdir=WORKDIR,
            base_commit=published.base_commit,
            test_patch=published.test_patch,
        )
    elif not script and "swebench" in image and find(row, "parsed_commit")[1] is not None:
        script = "#!/bin/bash\nexec bash /run_tests.sh\n"
    elif not script:
        ungradable = f"no test script: {published.repo} at version '{version}' is not in the harness's table"
    parser = optional_text(row, "log_parser") or (spec.parser if spec else "")
    if script and not parser:
        ungradable = "no log parser in the row, none known for the repository"
    return _imported(row, published, image, script, parser, spec, ungradable)


def _imported(
    row: Row, published: SweRow, image: str, script: str, parser: str, spec: Spec | None, ungradable: str
) -> Imported:
    language = optional_text(row, "language", "repo_language").lower() or (spec.language if spec else "")
    visible: dict[str, Any] = {"format": "swe-bench", "language": language or _language(published)}
    label = optional_text(row, "difficulty")
    if label:
        visible["estimated_effort"] = label
    answer = published.answer(
        test_command=script,
        log_parser=parser,
        hidden_paths=("/run_tests.sh", "/run_tests_regression.sh", "/eval.sh", "/root/eval.sh"),
        metadata={
            "eval_type": evaluation_kind(row, published.repo),
            **select_fields(row, "hints_text", "run_tests_regression", "image_assets", "datasets"),
        },
    )
    task = published.task(image=image, workdir=WORKDIR, metadata=visible)
    split = optional_text(row, "split")
    imported = Imported(task=task, answer=answer, split=split, ungradable=ungradable)
    return with_difficulty(imported, {"minutes": _MINUTES.get(label)})


def evaluation_kind(row: Row, repo: str) -> str:
    """Return ``pass_and_fail`` or ``fail_only``: the meaning of a test that the log does not mention."""
    given = optional_text(row, "eval_type")
    if given not in ("", "pass_and_fail", "fail_only"):
        raise DatasetError(f"unknown kind {given[:40]!r}", field="eval_type")
    return given or ("fail_only" if repo in FAIL_ONLY else "pass_and_fail")


def image_name(instance_id: str, *, namespace: str = "swebench") -> str:
    """Return the image that SWE-bench publishes for an instance."""
    return f"{namespace}/sweb.eval.x86_64.{instance_id.lower()}:latest".replace("__", "_1776_")


def _language(published: SweRow) -> str:
    endings = {"py": "python", "js": "javascript", "ts": "typescript", "go": "go", "rs": "rust", "rb": "ruby",
               "java": "java", "php": "php", "c": "c", "cc": "cpp", "cpp": "cpp", "cs": "csharp"}  # fmt: skip
    suffixes = [
        PurePosixPath(path).suffix[1:] for part in split_patch(published.patch) for path in part.paths[:1]
    ]
    known = [endings[suffix] for suffix in suffixes if suffix in endings]
    return max(sorted(set(known)), key=known.count) if known else ""


def convert_swe_gym(row: Row) -> Imported:
    """Convert a row of SWE-Gym: a classic row with other repositories and images. Raises DatasetError."""
    published = read_row(row)
    image = published.image or gym_image(published.instance_id)
    repo = published.repo.lower()
    command = _GYM_COMMANDS.get(repo, "")
    version = str(published.metadata.get("version") or "")
    arguments = "test"
    if repo == "python/mypy":
        command = _GYM_PYTEST if re.fullmatch(r"1\.(?:7|8|9|1\d)", version) else "pytest -n0 -rA"
        cases = re.findall(r"\[case ([^\]]+)\]", published.test_patch)
        arguments = f"-k {shlex.quote(' or '.join(dict.fromkeys(cases)))}" if cases else ""
    elif command:
        files = [path for part in split_patch(published.test_patch) for path in part.paths[-1:]]
        arguments = shlex.join(path for path in files if path.endswith(".py"))
    script = ""
    if command:
        script = make_script(
            workdir=WORKDIR,
            base_commit=published.base_commit,
            test_patch=published.test_patch,
            test=[f"{command} {arguments}".rstrip()],
            setup=["export PYTHONPATH=${PYTHONPATH:-}:$(pwd)"] if repo == "conan-io/conan" else [],
            conda=True,
        )
    parser = "parse_log_pytest_options" if repo == "pydantic/pydantic" else "parse_log_pytest"
    ungradable = "" if command else f"no test command is known for {published.repo}"
    imported = _imported(row, published, image, script, parser if command else "", None, ungradable)
    visible = {**imported.task.metadata, "format": "swe-gym", "language": "python"}
    return replace(imported, task=replace(imported.task, metadata=visible))


def gym_image(instance_id: str) -> str:
    """Return the image that SWE-Gym publishes for an instance."""
    return f"xingyaoww/sweb.eval.x86_64.{instance_id.lower().replace('__', '_s_')}:latest"
