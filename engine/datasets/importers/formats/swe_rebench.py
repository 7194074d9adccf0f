"""SWE-rebench: v1 (SWE-bench rows with ``install_config``, ``meta`` and an image) and V2 (20 languages).

Test command and parser are in ``install_config``. V1 runs in the conda environment ``testbed`` at
``/testbed``. V2 runs at ``/<repository>`` and has its own parsers, whose names are kept. Colours and trailing
durations are removed from V2's test names, as in its own evaluation.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from engine.datasets.importers.base import Imported, with_difficulty
from engine.datasets.importers.fields import (
    Row,
    command_list,
    find,
    mapping,
    optional_mapping,
    optional_text,
    select_fields,
)
from engine.datasets.importers.formats.evalscript import directives, make_script
from engine.datasets.importers.formats.swe_bench import image_name
from engine.datasets.importers.formats.swe_row import read_row
from engine.errors import DatasetError

_ANSI = re.compile(r"\x1b(?:[@-Z\\-_]|\[[0-?]*[ -/]*[@-~])")
_DURATION = re.compile(r"\s*[(\[]\s*\d+(?:\.\d+)?\s*m?s\s*[)\]]$")
V1_WORKDIR = "/testbed"


def convert(row: Row) -> Imported:
    """Convert a row of v1. Raises DatasetError with the field."""
    published = read_row(row)
    config = mapping(row, "install_config")
    files = " ".join(map(shlex.quote, directives(published.repo, published.test_patch)))
    commands = _commands(config)
    commands[-1] = f"{commands[-1]} {files}".rstrip()
    script = make_script(
        workdir=V1_WORKDIR,
        base_commit=published.base_commit,
        test_patch=published.test_patch,
        test=commands,
        setup=_variables(config),
        conda=True,
    )
    image = published.image or image_name(published.instance_id, namespace="swerebench")
    meta = optional_mapping(row, "meta")
    task = published.task(
        image=image, workdir=V1_WORKDIR, metadata={"format": "swe-rebench", "language": "python"}
    )
    answer = published.answer(
        test_command=script,
        log_parser=_parser(config),
        metadata=select_fields(row, "hints_text", "meta", "FAIL_TO_FAIL", "PASS_TO_FAIL"),
    )
    scores = meta.get("llm_score")
    return with_difficulty(
        Imported(task=task, answer=answer),
        {**(scores if isinstance(scores, dict) else {}), "lite": _lite(meta)},
    )


def convert_v2(row: Row) -> Imported:
    """Convert a row of V2. Raises DatasetError with the field."""
    published = read_row(row)
    config = mapping(row, "install_config")
    if not published.image:
        raise DatasetError("missing", field="image_name")
    workdir = "/" + published.repo.rpartition("/")[2]
    language = optional_text(row, "language").lower()
    task = published.task(workdir=workdir, metadata={"format": "swe-rebench-v2", "language": language})
    answer = published.answer(
        fail_to_pass=_plain(published.fail_to_pass),
        pass_to_pass=_plain(published.pass_to_pass),
        test_command=make_script(
            workdir=workdir,
            base_commit=published.base_commit,
            test_patch=published.test_patch,
            test=_commands(config),
        ),
        log_parser=_parser(config),
        metadata=select_fields(row, "hints_text", "meta", "interface"),
    )
    return Imported(task=task, answer=answer)


def _plain(tests: tuple[str, ...]) -> tuple[str, ...]:
    cleaned = (_DURATION.sub("", _ANSI.sub("", name).strip()) for name in tests)
    return tuple(dict.fromkeys(name for name in cleaned if name))


def _commands(config: Mapping[str, Any]) -> list[str]:
    commands = [
        command for command in command_list(find(config, "test_cmd")[1], "install_config.test_cmd") if command
    ]
    if not commands:
        raise DatasetError("empty", field="install_config.test_cmd")
    return commands


def _parser(config: Mapping[str, Any]) -> str:
    parser = config.get("log_parser")
    if not isinstance(parser, str) or not parser:
        raise DatasetError("missing", field="install_config.log_parser")
    return parser


def _variables(config: Mapping[str, Any]) -> list[str]:
    variables = config.get("env_vars")
    if not isinstance(variables, dict):
        return []
    return [
        f"export {name}={shlex.quote(str(value))}"
        for name, value in sorted(variables.items())
        if value is not None
    ]


def _lite(meta: Mapping[str, Any]) -> float | None:
    value = meta.get("is_lite")
    return float(value) if isinstance(value, bool) else None
