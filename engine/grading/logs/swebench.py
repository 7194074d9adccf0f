"""Interface to the ``swebench`` harness, used nowhere else: log parsers, grading, failure signatures.

No code of it is copied, so verdicts on logs equal the published ones. It is loaded on first use,
and only its grading part: ``swebench.harness`` itself would import docker, modal and datasets, and read
a ``.env`` file of the current folder. To follow a new version: pin it, run this package's tests.
"""

from __future__ import annotations

import functools
import importlib
import locale
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

from engine.grading.logs.lazy_import import import_without_init

FAIL_TO_PASS, PASS_TO_PASS = "FAIL_TO_PASS", "PASS_TO_PASS"
PASS_AND_FAIL, FAIL_ONLY = "pass_and_fail", "fail_only"
EXIT_CODE = ">>>>> Test Exit Code"

StatusMap = Mapping[str, str]
"""Test → PASSED, FAILED, SKIPPED, ERROR or XFAIL."""
Parser = Callable[[str, Any], dict[str, str]]
"""Function from a log and swebench's ``TestSpec`` to statuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Instance fields used by some parsers: calypso, lighthouse, immutable_js and jekyll."""

    instance_id: str = ""
    repo: str = ""
    version: str = ""


def _module(name: str) -> ModuleType:
    return import_without_init("swebench.harness", name, needed="requirements/engine.txt")


@functools.cache
def parsers() -> Mapping[str, Parser]:
    """Return swebench's own parsers by name."""
    return dict(_registry())


def _registry() -> dict[str, Parser]:
    return cast("dict[str, Parser]", _module("log_parsers").PARSER_REGISTRY)


def test_spec(instance: Instance, **fields: Any) -> Any:
    """Return swebench's ``TestSpec`` of an instance; ``fields`` override its values."""
    values: dict[str, Any] = {
        "instance_id": instance.instance_id,
        "image": "",
        "eval_script_list": [],
        "repo": instance.repo,
        "version": instance.version,
        "FAIL_TO_PASS": [],
        "PASS_TO_PASS": [],
    }
    return importlib.import_module("swebench.types").TestSpec(**{**values, **fields})


def instance_report(
    log: str,
    *,
    instance: Instance,
    parser_name: str,
    parser: Parser,
    fail_to_pass: Sequence[str],
    pass_to_pass: Sequence[str],
    eval_type: str = PASS_AND_FAIL,
    model_patch: str | None = "",
) -> dict[str, Any]:
    """Return swebench's ``get_eval_report`` on a log: ``patch_exists``, ``resolved``, ``tests_status``, ….

    Args:
        log: the whole log with its markers; universal newlines are applied as on reading a file.
        parser_name: the row's name of the parser.
        parser: parser with that name, not necessarily one of swebench's own.
        eval_type: ``pass_and_fail``, or ``fail_only`` for runners that report failures only.
        model_patch: None if the prediction has none.

    Raises:
        PreflightError: swebench is not installed.
    """
    parsers()  # copied before anything is added
    _registry().setdefault(parser_name, parser)  # get_eval_report finds parsers by name only
    spec = test_spec(
        instance,
        FAIL_TO_PASS=list(fail_to_pass),
        PASS_TO_PASS=list(pass_to_pass),
        log_parser=parser_name,
        eval_type=eval_type,
    )
    prediction = {
        "instance_id": instance.instance_id,
        "model_name_or_path": "",
        "model_patch": model_patch,
    }
    # swebench opens the file itself, with the locale's encoding.
    with tempfile.NamedTemporaryFile() as file:
        file.write(log.encode(locale.getencoding(), "replace"))
        file.flush()
        report = _module("grading").get_eval_report(
            test_spec=spec, prediction=prediction, test_log_path=file.name, include_tests_status=True
        )
    return cast("dict[str, Any]", report[instance.instance_id])


def resolve_case(test: str, statuses: StatusMap) -> str | None:
    """Return the outcome key of a required test: its name, or the id whose prefix is the truncated name."""
    return cast("str | None", _module("grading")._resolve_case(test, statuses))


def with_newlines(log: str) -> str:
    """Return a log as swebench reads it from a file, with universal newlines."""
    return log.replace("\r\n", "\n").replace("\r", "\n")


def classify_failure(log: str) -> tuple[str, str] | None:
    """Return ``(reason, tier)`` of an infrastructure failure; tier ``environment`` or ``ambiguous``."""
    return cast("tuple[str, str] | None", _module("infra_failure").classify_text(log))
