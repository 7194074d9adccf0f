"""Log parsers by name: swebench's own, and reimplementations where a dataset's parser cannot be imported.

To add one: a function log → {test: status} in ``_OWN``; statuses are those of swebench.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from engine.datasets.importers.formats import r2e_gym, swe_bench_pro, swe_smith
from engine.errors import DatasetError
from engine.grading.logs import swebench
from engine.grading.logs.multi_swe import PREFIX, multi_swe_parser

_STATUSES = ("FAILED", "PASSED", "SKIPPED", "ERROR", "XFAIL")


def parse_log(parser: str, log: str, instance: swebench.Instance | None = None) -> dict[str, str]:
    """Parse a log into statuses by test name.

    Args:
        parser: a name, e.g. ``parse_log_pytest`` or ``swesmith_pytest``.
        log: the output of the tests.
        instance: the instance to which the log belongs.

    Raises:
        DatasetError: there is no such parser; the message names similar ones.
    """
    return find_parser(parser)(log, swebench.test_spec(instance or swebench.Instance()))


def find_parser(name: str) -> swebench.Parser:
    """Return the parser of that name. Raises DatasetError, which names similar ones, for unknown names."""
    if name.startswith(PREFIX):
        return _with_spec(multi_swe_parser(name.removeprefix(PREFIX)))
    registry = _registry()
    if name not in registry:
        close = ", ".join(get_close_matches(name, registry, n=3)) or "parse_log_pytest"
        raise DatasetError(f"there is no log parser '{name}'; close ones: {close}")
    return registry[name]


def _registry() -> dict[str, swebench.Parser]:
    own = {name: _with_spec(parse) for name, parse in _OWN.items()}
    return {**own, **swebench.parsers()}


def _with_spec(parse: Callable[[str], dict[str, str]]) -> swebench.Parser:
    def parser(log: str, _spec: Any) -> dict[str, str]:
        return parse(log)

    return parser


def swesmith_pytest(log: str) -> dict[str, str]:
    """Parse ``pytest -v`` lines (status after the name), as SWE-smith's Python profiles do."""
    statuses: dict[str, str] = {}
    for line in log.split("\n"):
        if match := re.match(rf"(\S+)\s+({'|'.join(_STATUSES)})", line):
            statuses[match[1]] = match[2]
    return statuses


def swesmith_gotest(log: str) -> dict[str, str]:
    """Parse ``go test -v`` lines, as SWE-smith's Go profiles do."""
    words = {"PASS": "PASSED", "FAIL": "FAILED", "SKIP": "SKIPPED"}
    statuses: dict[str, str] = {}
    for line in log.split("\n"):
        if match := re.match(r"--- (PASS|FAIL|SKIP): (\S+)", line.strip()):
            statuses[match[2]] = words[match[1]]
        elif match := re.match(r"FAIL:?\s?(.+?)\s", line.strip()):
            statuses[match[1]] = "FAILED"
    return statuses


def printed_json(log: str) -> dict[str, str]:
    """Parse the JSON printed by a task's own ``parser.py``: ``{"tests": [{"name", "status"}]}``."""
    start, end = log.find("{"), log.rfind("}")
    try:
        tests = json.loads(log[start : end + 1])["tests"]
        return {str(test["name"]): str(test["status"]) for test in tests if test["status"] in _STATUSES}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}


_OWN: Mapping[str, Callable[[str], dict[str, str]]] = {
    swe_smith.PARSER: swesmith_pytest,
    "swesmith_gotest": swesmith_gotest,
    r2e_gym.PARSER: r2e_gym.parse_log,
    swe_bench_pro.PARSER: printed_json,
}
