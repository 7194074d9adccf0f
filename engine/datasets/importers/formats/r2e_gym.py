"""R2E-Gym: Subset, Lite, V1, Full and their validated selections; ``swe_bench`` reads its SWE-bench variant.

A row has no id, no patch and no test lists. The gold patch is built from the parsed commit; grading compares
the whole map of outcomes. The image contains the hidden tests (``/r2e_tests``, ``run_tests.sh``), which must
be removed before an agent starts. Schema: ``DatasetRow`` and ``docker.py`` of R2E-Gym/R2E-Gym.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engine.datasets.importers.base import Imported, difficulty, with_difficulty
from engine.datasets.importers.fields import (
    Row,
    find,
    mapping,
    number,
    optional_mapping,
    optional_text,
    plain,
    select_fields,
    text,
)
from engine.datasets.importers.formats import swe_bench
from engine.datasets.importers.formats.parsed_commit import CommitPatches, read_commit
from engine.errors import DatasetError
from engine.types import GradeRule, Task, TaskAnswer

WORKDIR = "/testbed"
PARSER = "r2e_pytest"
HIDDEN_PATHS = (
    "/r2e_tests", "/root/r2e_tests", "/root/run_tests.sh", "/testbed/r2e_tests", "/testbed/run_tests.sh",
    "/run_tests.sh", "/testbed/expected_test_output.json", "/testbed/execution_result.json",
    "/testbed/parsed_commit.json", "/testbed/modified_files.json", "/testbed/modified_entities.json",
    "/testbed/syn_issue.json",
)  # fmt: skip
TEST_COMMAND = """\
#!/bin/bash
cd /testbed
mkdir -p r2e_tests
for tests in /root/r2e_tests /r2e_tests; do
  if [ -d "$tests" ] && ! [ "$tests" -ef r2e_tests ]; then cp -rn "$tests/." r2e_tests/; fi
done
for script in /root/run_tests.sh /testbed/run_tests.sh; do
  if [ -f "$script" ]; then exec bash "$script"; fi
done
export PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning'
exec .venv/bin/python -W ignore -m pytest -rA r2e_tests
"""
REPOSITORIES = {
    "aiohttp": "aio-libs/aiohttp", "coveragepy": "nedbat/coveragepy", "datalad": "datalad/datalad",
    "numpy": "numpy/numpy", "orange3": "biolab/orange3", "pandas": "pandas-dev/pandas",
    "pillow": "python-pillow/Pillow", "pyramid": "Pylons/pyramid", "scrapy": "scrapy/scrapy",
    "sympy": "sympy/sympy", "tornado": "tornadoweb/tornado",
}  # fmt: skip
_STATUSES = frozenset({"PASSED", "FAILED", "ERROR"})
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SUMMARY = "short test summary info"


def convert(row: Row) -> Imported:
    """Convert one row of any of R2E-Gym's datasets. Raises DatasetError with the field."""
    if find(row, "instance_id")[1] is not None and find(row, "parsed_commit_content")[1] is None:
        return swe_bench.convert(row)
    commit = read_commit(mapping(row, "parsed_commit_content"), field="parsed_commit_content")
    if not commit.code.strip():
        raise DatasetError("the commit changes no file but tests", field="parsed_commit_content")
    short, sha = text(row, "repo_name", "repo"), text(row, "commit_hash")
    expected = _expected(mapping(row, "expected_output_json"))
    results = optional_mapping(row, "execution_result_content")
    before = parse_log(str(results.get("old_commit_res_stdout") or ""))
    fixed = tuple(
        name for name, status in expected.items() if status == "PASSED" and before.get(name) != status
    )
    stable = tuple(
        name for name, status in expected.items() if status == "PASSED" and before.get(name) == status
    )
    task = Task(
        id="",
        instance_id=f"{short}__{sha[:12]}",
        repo=REPOSITORIES.get(short, short),
        base_commit=commit.old_commit,
        problem_statement=statement(text(row, "problem_statement")),
        image=text(row, "docker_image"),
        workdir=WORKDIR,
        difficulty=difficulty(commit.code, len(expected), len(fixed)),
        metadata={"format": "r2e-gym", "language": "python"},
    )
    answer = TaskAnswer(
        gold_patch=commit.code,
        test_patch=commit.tests,
        test_files=_test_files(results),
        # Without a log of the old commit, the tests fixed by the patch are unknown.
        fail_to_pass=fixed if before else (),
        pass_to_pass=stable if before else fixed,
        test_command=TEST_COMMAND,
        grade_rule=GradeRule.MAP_EQUAL,
        log_parser=PARSER,
        expected=expected,
        hidden_paths=HIDDEN_PATHS,
        metadata=_answer_metadata(row, commit, sha),
    )
    sizes = ("num_non_test_files", "num_non_test_func_methods", "num_non_test_lines")
    return with_difficulty(Imported(task=task, answer=answer), {name: number(row, name) for name in sizes})


def statement(published: str) -> str:
    """Return the issue, the text between ``[ISSUE]`` and ``[/ISSUE]`` if marked. Raises DatasetError."""
    tagged = re.search(r"\[ISSUE\](.*)\[/ISSUE\]", published, re.DOTALL)
    issue = (tagged[1] if tagged else published).strip()
    if not issue:
        raise DatasetError("the issue is empty", field="problem_statement")
    return issue


def plain_name(name: str) -> str:
    """Return a test's name as R2E-Gym compares it: without colours and the part after ``' - '``."""
    return _COLOUR.sub("", name).split(" - ")[0]


def _expected(published: Mapping[str, Any]) -> dict[str, str]:
    expected = {plain_name(str(name)): status for name, status in published.items()}
    expected.pop("", None)  # the comparison skips it
    wrong = sorted(str(status) for status in expected.values() if str(status) not in _STATUSES)
    if wrong:
        raise DatasetError(f"unknown status {wrong[0][:40]!r}", field="expected_output_json")
    if "PASSED" not in expected.values():
        raise DatasetError("no test is expected to pass", field="expected_output_json")
    return expected


def parse_log(log: str) -> dict[str, str]:
    """Return test → status from the short summary of ``pytest -rA``, as R2E-Gym reads it.

    A name is the node id without its file, joined by dots; the summary ends where another one begins.
    """
    statuses: dict[str, str] = {}
    for line in "".join(log.split(_SUMMARY)[1:2]).strip().split("\n"):
        for status in ("PASSED", "FAILED", "ERROR"):
            if status in line:
                statuses[plain_name(".".join(line.split("::")[1:]))] = status
                break
    statuses.pop("", None)
    return statuses


def _test_files(results: Mapping[str, Any]) -> dict[str, str]:
    file_names, codes = results.get("test_file_names") or [], results.get("test_file_codes") or []
    field = "execution_result_content.test_file_names"
    if len(file_names) != len(codes):
        raise DatasetError(f"{len(file_names)} names for {len(codes)} files", field=field)
    files = {}
    for name, code in zip(file_names, codes, strict=True):
        path = str(name).removeprefix("./").removeprefix("r2e_tests/")
        if path.startswith("/") or ".." in path.split("/"):
            raise DatasetError("leads out of the tests' folder", field=field)
        files[f"r2e_tests/{path}"] = str(code)
    return files


def _answer_metadata(row: Row, commit: CommitPatches, sha: str) -> dict[str, Any]:
    fields = ("modified_files", "relevant_files", "modified_entity_summaries", "prompt")
    metadata = select_fields(row, *fields)
    metadata["commit"] = sha
    metadata["commit_message"] = commit.message
    if commit.left_out:
        metadata["left_out_of_gold"] = list(commit.left_out)
    original = optional_text(row, "problem_statement")
    if "[ISSUE]" in original:
        metadata["published_statement"] = original
    return {name: plain(value) for name, value in metadata.items() if value}
