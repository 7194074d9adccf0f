"""Log parsers of Multi-SWE: code of the package ``multi_swe_bench``, one class per repository.

The package is optional and large (two thousand modules); only the one that registers a repository is
loaded, by its file. Parsers are named ``multi_swe:<org>/<repo>``.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

from engine.errors import DatasetError
from engine.grading.logs.lazy_import import import_without_init, package_folder

PREFIX = "multi_swe:"
_NEEDED = "multi_swe_bench==1.1.2"


@functools.cache
def multi_swe_parser(name: str) -> Callable[[str], dict[str, str]]:
    """Return the parser of a repository: a log → {test: PASSED, FAILED or SKIPPED}.

    Args:
        name: ``<org>/<repo>``.

    Raises:
        PreflightError: the package is not installed.
        DatasetError: the package has no parser for the repository.
    """
    folder = package_folder("multi_swe_bench", needed=f"{_NEEDED} for the log parser '{PREFIX}{name}'")
    org, _, repo = name.partition("/")
    instances, requests, images = (
        import_without_init("multi_swe_bench.harness", module, needed=_NEEDED)
        for module in ("instance", "pull_request", "image")
    )
    _load(folder / "harness" / "repos", org, repo)
    base = requests.Base(label="", ref="", sha="")
    empty_fields = {"state": "", "title": "", "body": "", "base": base, "resolved_issues": []}
    request = requests.PullRequest(org=org, repo=repo, number=0, fix_patch="", test_patch="", **empty_fields)
    config = images.Config(need_clone=False, global_env=None, clear_env=False)
    instance = instances.Instance.create(request, config)

    def parse(log: str) -> dict[str, str]:
        result = instance.parse_log(log)
        statuses = dict.fromkeys(result.skipped_tests, "SKIPPED")
        statuses.update(dict.fromkeys(result.passed_tests, "PASSED"))
        return statuses | dict.fromkeys(result.failed_tests, "FAILED")

    return parse


def _load(folder: Path, org: str, repo: str) -> None:
    """Import the module that registers a repository."""
    registers = re.compile(rf"register\(\s*\"{re.escape(org)}\",\s*\"{re.escape(repo)}\"", re.IGNORECASE)
    for path in sorted(folder.rglob("*.py")):
        if registers.search(path.read_text(encoding="utf-8", errors="replace")):
            spec = importlib.util.spec_from_file_location(f"multi_swe_repo_{path.stem}", path)
            if spec is not None and spec.loader is not None:
                spec.loader.exec_module(importlib.util.module_from_spec(spec))
                return
    raise DatasetError(f"multi_swe_bench has no repository '{org}/{repo}'")
