"""Dataset rows for the example images, in the schemas their datasets are published in.

R2E-Gym: a row has the whole commit, both logs and the expected outcome of every test. SWE-bench (harness 5):
a row has patch and test patch, the lists of tests, and the image, script and parser to grade with. Every
outcome is read from a run in the image.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import layout
from layout import Source

Run = Callable[[str, str], str]
"""Function that runs a shell script in a kind of image and returns its output."""

STATEMENT = """Field names with hyphens are not recognised

A format string may name its fields with hyphens, as paths of web services often do, and `str.format` accepts
that: `"/local/sub/{user-id}/duration".format(**{"user-id": 7})` works. The opposite does not:

```python
>>> import parse
>>> parse.parse("/local/sub/{user-id}/duration", "/local/sub/1647222638/duration") is None
True
```

I expect a result with `result["user-id"] == "1647222638"`. As with dots and brackets today, the hyphen
cannot be part of the regular expression's group name, so it should become an underscore there, and names that
then collide (`{user-id}`, `{user_id}`, `{user.id}`) must still be told apart.
"""

_PATCH_HERE = "cd /testbed && git apply -v - <<'EOF_TRAINYARD'\n{patch}EOF_TRAINYARD\n"


def patch(source: Source, paths: tuple[str, ...]) -> str:
    """Return the diff of the fix below ``paths``."""
    return source.git("diff", source.old_commit, source.new_commit, "--", *paths)


def _hunks(lines: list[str]) -> list[dict[str, Any]]:
    kinds = {" ": "context", "+": "added", "-": "deleted", "\\": "note"}
    found: list[dict[str, Any]] = []
    for line in lines:
        header = re.match(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)", line)
        if header:
            old_start, old_length, new_start, new_length, section = header.groups()
            descriptor = {
                "old_range": {"start": int(old_start), "length": int(old_length) if old_length else None},
                "new_range": {"start": int(new_start), "length": int(new_length) if new_length else None},
                "section": section,
            }
            entities: dict[str, list[Any]] = {
                "modified_entities": [],
                "added_entities": [],
                "deleted_entities": [],
            }
            found.append({"descriptor": descriptor, "line_group": {"all_lines": []}, **entities})
        elif found and line[:1] in kinds:
            content = line[2:] if line[0] == "\\" else line[1:]
            found[-1]["line_group"]["all_lines"].append({"content": content, "type": kinds[line[0]]})
    return found


def _file_diff(source: Source, path: str) -> dict[str, Any]:
    lines = patch(source, (path,)).splitlines()
    index = next(line for line in lines if line.startswith("index "))
    hashes, mode = index.split()[1:]
    old_hash, new_hash = hashes.split("..")
    return {
        "old_file_content": source.git("show", f"{source.old_commit}:{path}"),
        "new_file_content": source.git("show", f"{source.new_commit}:{path}"),
        "header": {"file": {"path": path}, "misc_line": None},
        "index_line": {"old_commit_hash": old_hash, "new_commit_hash": new_hash, "mode": mode},
        "is_binary_file": False,
        "binary_line": None,
        "minus_file": {"path": f"a/{path}"},
        "plus_file": {"path": f"b/{path}"},
        "hunks": _hunks(lines),
    }


def _outcomes(log: str) -> dict[str, str]:
    """Parse pytest's short summary to a status by test, as R2E-Gym does: without path, joined by dots."""
    found = {}
    for line in log.partition("short test summary info")[2].splitlines():
        match = re.match(r"(PASSED|FAILED|ERROR) \S*?::(.*)", line)
        if match:
            found[match[2].split(" - ")[0].replace("::", ".")] = match[1]
    return found


def r2e_row(source: Source, image: str, run: Run) -> dict[str, Any]:
    """Return a row of R2E-Gym-Subset."""
    runner = "bash /root/run_tests.sh"
    old = run("r2e", runner)
    new = run("r2e", _PATCH_HERE.format(patch=patch(source, layout.CHANGED)) + runner)
    expected = _outcomes(new)
    if _outcomes(old) == expected or set(expected.values()) != {"PASSED"}:
        raise RuntimeError(f"the fix does not do what it should:\n{old}\n{new}")
    commit = {
        "file_diffs": [_file_diff(source, path) for path in (*layout.CHANGED, *layout.TESTS)],
        "old_commit_hash": source.old_commit,
        "new_commit_hash": source.new_commit,
        "commit_message": layout.MESSAGES[layout.NEW],
        "commit_date": "2024-06-11T04:41:48+00:00",
        "metadata": {},
    }
    execution = {
        "repo_name": layout.NAME,
        "new_commit_hash": source.new_commit,
        "test_file_codes": [(source.new / name).read_text() for name in layout.TESTS],
        "test_file_names": [f"test_{number}.py" for number in range(1, len(layout.TESTS) + 1)],
        **{f"setup_res_{part}": value for part, value in (("code", 0), ("stdout", ""), ("stderr", ""))},
        **{f"old_commit_res_{part}": value for part, value in (("code", 1), ("stdout", old), ("stderr", ""))},
        **{f"new_commit_res_{part}": value for part, value in (("code", 0), ("stdout", new), ("stderr", ""))},
    }
    gold = patch(source, layout.CHANGED)
    return {
        "repo_name": layout.NAME,
        "docker_image": image,
        "commit_hash": source.new_commit,
        "parsed_commit_content": json.dumps(commit),
        "execution_result_content": json.dumps(execution),
        "modified_files": [*layout.CHANGED, *layout.TESTS],
        "modified_entity_summaries": [],
        "relevant_files": list(layout.CHANGED),
        "num_non_test_files": len(layout.CHANGED),
        "num_non_test_func_methods": 3,
        "num_non_test_lines": sum(
            line[:1] in "+-" and line[:3] not in ("+++", "---") for line in gold.splitlines()
        ),
        "prompt": f"Write an issue for this commit:\n{gold}",
        "problem_statement": f"[ISSUE]\n{STATEMENT}[/ISSUE]",
        "expected_output_json": json.dumps(expected),
    }


def eval_script(source: Source) -> str:
    """Return the script that the harness runs in the image after applying the model's patch."""
    tests = " ".join(layout.TESTS)
    return f"""#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
git config --global --add safe.directory /testbed
git status
git checkout {source.old_commit} {tests}
git apply -v - <<'EOF_114329324912'
{patch(source, layout.TESTS)}EOF_114329324912
: '>>>>> Start Test Output'
pytest -rA {tests}
: '>>>>> End Test Output'
git checkout {source.old_commit} {tests}
"""


def _passed(log: str) -> set[str]:
    return set(re.findall(r"^PASSED (\S+)", log, re.MULTILINE))


def swe_row(source: Source, image: str, run: Run) -> dict[str, Any]:
    """Return a row of SWE-bench with the additional columns of harness 5."""
    script, gold = eval_script(source), patch(source, layout.CHANGED)
    before = _passed(run("swe", script))
    after = _passed(run("swe", _PATCH_HERE.format(patch=gold) + script))
    if not after - before or before - after:
        raise RuntimeError(f"the fix does not do what it should: {before ^ after}")
    return {
        "repo": layout.REPO,
        "instance_id": source.instance_id,
        "base_commit": source.old_commit,
        "patch": gold,
        "test_patch": patch(source, layout.TESTS),
        "problem_statement": STATEMENT,
        "hints_text": "",
        "created_at": "2024-06-11T04:41:48Z",
        "version": "1.20",
        "FAIL_TO_PASS": json.dumps(sorted(after - before)),
        "PASS_TO_PASS": json.dumps(sorted(after & before)),
        "environment_setup_commit": source.old_commit,
        "image": image,
        "eval_script": script,
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
    }
