"""Rows of a dataset in the schema of R2E-Gym, for its tools and for the import format ``r2e-gym``.

The format has no lists of tests: the tests that must start to pass are those that the log of the old commit
reports as failed. Both logs are written from the recorded outcomes, as pytest's short summary. The texts of
files come from the task's image on this machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import DatasetError, HostError, PatchError, describe_error
from engine.patches.apply import apply_patch, touched
from engine.patches.diff import diff_trees
from engine.patches.r2e_diffs import file_differences
from engine.patches.structure import parse_patch
from engine.patches.trees import FileState, Tree, is_plain
from engine.reading import read_bounded
from engine.types import GradeRule

Row = Mapping[str, Any]
_RULES = (GradeRule.F2P_P2P, GradeRule.MAP_EQUAL)
_TESTS = "r2e_tests"
_MAX_FILE = 4 << 20
"""Size of a file whose text is exported, bytes."""


def check_row(number: int, answer: Row) -> None:
    """Raise DatasetError if the format cannot express a row."""
    if answer.get("grade_rule", GradeRule.F2P_P2P) not in _RULES:
        rule = answer.get("grade_rule")
        raise DatasetError(
            f"graded by '{rule}', which R2E-Gym's format lacks", row=number, field="grade_rule"
        )
    if not _commit(answer):
        problem = "R2E-Gym's rows are commits, and this task has none: export it in the format trainyard"
        raise DatasetError(problem, row=number, field="metadata.commit")
    try:
        parse_patch(str(answer.get("gold_patch", "")))
    except PatchError as error:
        raise DatasetError(str(error), row=number, field="gold_patch") from None


def r2e_row(task: Row, answer: Row, home: Path) -> dict[str, Any]:
    """Return one row.

    Args:
        task, answer: the halves of a stored row.
        home: the data folder, with the images.

    Raises:
        DatasetError: its gold patch cannot be read, or a field has an unexpected type.
    """
    try:
        return _r2e_row(task, answer, home)
    except (PatchError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise DatasetError(f"{task.get('instance_id')} cannot be exported: {describe_error(error)}") from None


def _r2e_row(task: Row, answer: Row, home: Path) -> dict[str, Any]:
    sha, metadata, difficulty = _commit(answer), answer["metadata"], task.get("difficulty", {})
    name = str(task["instance_id"]).removesuffix(f"__{sha[:12]}").rpartition("/")[2]
    failing, passing = answer.get("fail_to_pass", ()), answer.get("pass_to_pass", ())
    expected = answer.get("expected") or {_test_name(test): "PASSED" for test in (*failing, *passing)}
    tests = {path.removeprefix(f"{_TESTS}/"): text for path, text in answer.get("test_files", {}).items()}
    commit = {
        "file_diffs": _differences(task, answer, home),
        "old_commit_hash": task.get("base_commit", ""),
        "new_commit_hash": sha,
        "commit_message": metadata.get("commit_message") or metadata.get("subject", ""),
        "commit_date": metadata.get("date", ""),
        "metadata": {},
    }
    results = {
        "repo_name": name,
        "new_commit_hash": sha,
        "test_file_codes": list(tests.values()),
        "test_file_names": list(tests),
        **_results("setup", 0, ""),
        **_results("new_commit", 0, _log(dict.fromkeys((*failing, *passing), "PASSED"))),
        **_results(
            "old_commit", 1, _log({**dict.fromkeys(failing, "FAILED"), **dict.fromkeys(passing, "PASSED")})
        ),
    }
    return {
        "repo_name": name,
        "docker_image": task.get("image", ""),
        "commit_hash": sha,
        "parsed_commit_content": json.dumps(commit),
        "execution_result_content": json.dumps(results),
        "expected_output_json": json.dumps(expected),
        "modified_files": metadata.get("modified_files") or metadata.get("files", []),
        "relevant_files": metadata.get("relevant_files", []),
        "modified_entity_summaries": metadata.get("modified_entity_summaries") or _entities(metadata),
        "num_non_test_files": _size(difficulty, "num_non_test_files", "num_files"),
        "num_non_test_func_methods": _size(difficulty, "num_non_test_func_methods", "num_entities"),
        "num_non_test_lines": _size(difficulty, "num_non_test_lines", "patch_lines"),
        "prompt": metadata.get("prompt", ""),
        "problem_statement": f"[ISSUE]\n{task['problem_statement']}\n[/ISSUE]",
    }


def _commit(answer: Row) -> str:
    return str((answer.get("metadata") or {}).get("commit") or "")


def _test_name(test: str) -> str:
    """Return a test's name as R2E-Gym compares it: without its file, parts joined by dots."""
    return (".".join(test.split("::")[1:]) or test).split(" - ")[0]


def _log(outcomes: Mapping[str, str]) -> str:
    lines = (
        f"{outcome} {test if '::' in test else f'{_TESTS}::{test}'}" for test, outcome in outcomes.items()
    )
    return "\n".join(["=== short test summary info ===", *lines])


def _results(stage: str, code: int, output: str) -> dict[str, Any]:
    return {f"{stage}_res_code": code, f"{stage}_res_stdout": output, f"{stage}_res_stderr": ""}


def _entities(metadata: Row) -> list[dict[str, Any]]:
    """Return changed entities by file and name; kinds and lines are not recorded (null)."""
    unknown = {"ast_type_str": None, "start_lineno": None, "end_lineno": None}
    return [
        {"file_name": path, "type": None, "name": name, **unknown}
        for path, changes in metadata.get("entities", {}).items()
        for names in changes.values()
        for name in names
    ]


def _size(difficulty: Row, *names: str) -> int:
    return int(next((difficulty[name] for name in names if name in difficulty), 0))


def _differences(task: Row, answer: Row, home: Path) -> list[dict[str, Any]]:
    """Return the change of code and tests with texts; without the image, of code alone and without texts."""
    gold, tests = str(answer.get("gold_patch", "")), answer.get("test_files", {})
    root = _image_root(task, home)
    if root is None:
        return file_differences(gold + str(answer.get("test_patch", "")), None, None)
    try:
        before = _read_tree(root, (*touched(gold), *tests))
        changed = apply_patch(before, gold)
    except (PatchError, HostError, OSError):  # the image has another tree, or a huge file
        return file_differences(gold + str(answer.get("test_patch", "")), None, None)
    after = {
        path: state for path, state in {**before, **changed.files}.items() if path not in changed.deleted
    }
    after |= {path: FileState(0o100644, text.encode()) for path, text in tests.items() if is_plain(path)}
    return file_differences(diff_trees(before, after), before, after)


def _image_root(task: Row, home: Path) -> Path | None:
    """Return the task's tree before the change; None if its image is not a folder on this machine."""
    kind, _, name = str(task.get("image", "")).partition(":")
    if kind != "local" or not name or name.startswith(".") or "/" in name:
        return None
    image = home / "images" / name / "rootfs"
    root = image / str(task.get("workdir", "")).lstrip("/")
    return root if root.is_dir() and root.resolve().is_relative_to(image.resolve()) else None


def _read_tree(root: Path, paths: tuple[str, ...]) -> Tree:
    """Return the existing regular files among some paths; links out of the tree are left out."""
    tree: dict[str, FileState] = {}
    for name in paths:
        path = root / name
        if is_plain(name) and path.is_file() and path.resolve().is_relative_to(root.resolve()):
            tree[name] = FileState(path.stat().st_mode, read_bounded(path, _MAX_FILE))
    return tree
