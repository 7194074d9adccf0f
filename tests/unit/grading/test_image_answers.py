"""Answers removed from a task's image before grading, and git objects that test scripts need."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.datasets.importers.formats import multi_swe, r2e_gym
from engine.grading.running.image_answers import answer_paths, named_commits, taken_files
from engine.types import TaskAnswer, TaskRow
from tests.builders.rollout_builders import make_row

BASE, LATER = "0a1b2c3d4e5f60718293a4b5c6d7e8f901234567", "1111222233334444555566667777888899990abc"


def answer(command: str = "", **fields: Any) -> TaskAnswer:
    return TaskAnswer(**{"gold_patch": "", "test_command": command, **fields})


def row(command: str = "", base: str = BASE, **fields: Any) -> TaskRow:
    default = make_row()
    return replace(default, task=replace(default.task, base_commit=base), answer=answer(command, **fields))


def test_solutions_are_removed_and_tests_are_kept() -> None:
    multi = answer(multi_swe.TEST_COMMAND, hidden_paths=multi_swe.HIDDEN_PATHS)
    assert set(multi_swe.HIDDEN_PATHS) - set(answer_paths(multi)) == {"/home/test.patch", "/home/test-run.sh"}
    r2e = answer(r2e_gym.TEST_COMMAND, hidden_paths=r2e_gym.HIDDEN_PATHS)
    left = {path for path in r2e_gym.HIDDEN_PATHS if path not in answer_paths(r2e)}
    assert {path.rpartition("/")[2] for path in left} == {"r2e_tests", "run_tests.sh"}
    harbor = answer("bash /tests/test.sh\n", hidden_paths=("/tests", "/solution", "/logs/verifier"))
    assert answer_paths(harbor) == ["/solution"]
    assert answer_paths(answer("bash /home/run.sh\n", hidden_paths=("/home/run.sh",))) == [], "it is named"


SCRIPT = f"""#!/bin/bash
git config --global --add safe.directory /testbed
git status
git -c core.fileMode=false diff {BASE}
git checkout {BASE} tests/test_a.py 'tests/b c.py'
git apply -v - <<'EOF'
diff --git a/x b/x
index 2222222..3333333 100644
--- a/x
+++ b/x
@@ -1 +1 @@
-git checkout 4444444 -- secret.py
+5555555
EOF
python -m pytest tests/test_a.py
git checkout {LATER} -- test/foo.js
git restore --source {LATER[:10]} -- test/bar.js
git show {LATER}:test/baz.js > test/baz.js
"""


def test_commits_and_files_named_by_a_script_are_found() -> None:
    assert named_commits(row(SCRIPT)) == [BASE, LATER, LATER[:10]]
    assert taken_files(answer(SCRIPT)) == [
        "tests/test_a.py", "tests/b c.py", "test/foo.js", "test/bar.js", "test/baz.js",
    ]  # fmt: skip


def test_scripts_among_the_test_files_are_searched() -> None:
    files = {"/workspace/run_script.sh": f"git checkout {LATER} -- a_test.go\n", "/tests/x.py": f"'{BASE}'"}
    assert named_commits(row(base="1", test_files=files)) == [LATER]
    assert taken_files(answer(test_files=files)) == ["a_test.go"]


@pytest.mark.parametrize("command", ["", "pytest -k 123456\n", "git checkout\n", "git checkout 'x\n"])
def test_numbers_and_broken_commands_name_no_commits_or_files(command: str) -> None:
    assert named_commits(row(command, base="v1.0")) == []
    assert taken_files(answer(command)) == []
