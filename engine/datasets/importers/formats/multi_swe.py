"""Multi-SWE-RL and Multi-SWE-bench: seven languages, tests by transitions, patches stored in the image.

The image contains ``/home/fix.patch`` (the fix), ``/home/test.patch`` and the scripts that apply them; all
are hidden. ``test-run.sh`` applies the test patch only; on a tree with a candidate's patch, this equals the
published fix run. Log parsers are code of multi_swe_bench, one class per repository; the parser's name here
is ``multi_swe:<org>/<repo>``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.datasets.importers.base import Imported, difficulty
from engine.datasets.importers.fields import Row, find, mapping, optional_text, select_fields, structure, text
from engine.errors import DatasetError
from engine.types import GradeRule, Task, TaskAnswer

HIDDEN_PATHS = (
    "/home/fix.patch", "/home/test.patch", "/home/run.sh", "/home/test-run.sh", "/home/fix-run.sh",
    "/home/prepare.sh",
)  # fmt: skip
TEST_COMMAND = "#!/bin/bash\nexec bash /home/test-run.sh\n"
_KINDS = ("p2p_tests", "f2p_tests", "s2p_tests", "n2p_tests")
_RESULTS = ("run_result", "test_patch_result")
_STATES = {"passed_tests": "PASS", "failed_tests": "FAIL", "skipped_tests": "SKIP"}


def convert(row: Row) -> Imported:
    """Convert one row. Raises DatasetError with the field."""
    org, repo = text(row, "org"), text(row, "repo")
    pull_request = find(row, "number")[1]
    if not str(pull_request).isdigit():
        raise DatasetError("not a number", field="number")
    kinds = {kind: _tests(row, kind) for kind in _KINDS}
    fixed = tuple(name for kind in _KINDS[1:] for name in kinds[kind])
    if not fixed:
        raise DatasetError("the fix makes no failing test pass", field="fixed_tests")
    gold, base = text(row, "fix_patch"), mapping(row, "base")
    task = Task(
        id="",
        instance_id=optional_text(row, "instance_id") or f"{org}__{repo}-{pull_request}",
        repo=f"{org}/{repo}",
        base_commit=text(base, "sha"),
        problem_statement=_statement(row),
        image=optional_text(row, "image_name", "docker_image")
        or f"mswebench/{org}_m_{repo}:pr-{pull_request}".lower(),
        workdir=f"/home/{repo}",
        difficulty=difficulty(gold, len(fixed) + len(kinds["p2p_tests"]), len(fixed)),
        metadata={
            "format": "multi-swe-rl",
            "language": optional_text(row, "lang", "language").lower(),
            **select_fields(row, "tag"),
        },
    )
    answer = TaskAnswer(
        gold_patch=gold,
        test_patch=optional_text(row, "test_patch"),
        fail_to_pass=fixed,
        pass_to_pass=kinds["p2p_tests"],
        test_command=TEST_COMMAND,
        grade_rule=GradeRule.MULTI_SWE,
        log_parser=f"multi_swe:{org}/{repo}",
        hidden_paths=HIDDEN_PATHS,
        metadata={
            **{kind: list(tests) for kind, tests in kinds.items()},
            **{name: _outcomes(row, name) for name in _RESULTS},
        },
    )
    return Imported(task=task, answer=answer)


def _statement(row: Row) -> str:
    """Return titles and texts of the resolved issues; without issues, those of the pull request."""
    issues = structure(find(row, "resolved_issues")[1]) or []
    if isinstance(issues, dict):
        # columnar ports: {"number": [...], "title": [...], "body": [...]}
        columns = {name: list(values) for name, values in issues.items() if isinstance(values, list)}
        issues = [dict(zip(columns, values, strict=False)) for values in zip(*columns.values(), strict=False)]
    parts = []
    for issue in issues if isinstance(issues, list) else ():
        if isinstance(issue, dict):
            parts.append("\n".join(str(issue[name]).strip() for name in ("title", "body") if issue.get(name)))
    statement = "\n\n".join(part for part in parts if part)
    if not statement:
        statement = "\n".join(
            part for part in (optional_text(row, "title"), optional_text(row, "body")) if part
        ).strip()
    if not statement:
        raise DatasetError("neither an issue nor a title", field="resolved_issues")
    return statement


def _tests(row: Row, field: str) -> tuple[str, ...]:
    """Return the names of the tests with one kind of transition; columnar ports have a list of names."""
    value = structure(find(row, field)[1])
    if value is None:
        return ()
    if isinstance(value, dict):
        columns = value.get("name")
        tests = (
            list(columns)
            if isinstance(columns, list)
            else [name for name, item in value.items() if item is not None]
        )
    elif isinstance(value, list):
        tests = [item.get("name") if isinstance(item, dict) else item for item in value]
    else:
        raise DatasetError("not an object", field=field)
    if not all(isinstance(name, str) for name in tests):
        raise DatasetError("not an object of tests", field=field)
    return tuple(dict.fromkeys(tests))


def _outcomes(row: Row, field: str) -> dict[str, str]:
    """Return test → PASS, FAIL or SKIP of one of the published runs."""
    result: Mapping[str, Any] = mapping(row, field)
    outcomes: dict[str, str] = {}
    for column, state in _STATES.items():
        tests = structure(result.get(column)) or []
        if not isinstance(tests, list):
            raise DatasetError("not a list", field=f"{field}.{column}")
        outcomes.update({str(name): state for name in tests})
    return outcomes
