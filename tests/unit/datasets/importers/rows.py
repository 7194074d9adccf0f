"""Small hand-written rows of every published schema; agents must not see their ``SECRETS``."""
# ruff: noqa: E501, W293  (literal rows)

from __future__ import annotations

import json
from typing import Any

CODE_PATCH = """\
diff --git a/pkg/core.py b/pkg/core.py
index 1111111..2222222 100644
--- a/pkg/core.py
+++ b/pkg/core.py
@@ -1,5 +1,5 @@ def clamp(value, low, high):
 def clamp(value, low, high):
     if value < low:
         return low
-    if value < high:
+    if value > high_secret_gold_line:
         return high
"""
TEST_PATCH = """\
diff --git a/tests/test_core.py b/tests/test_core.py
index 3333333..4444444 100644
--- a/tests/test_core.py
+++ b/tests/test_core.py
@@ -1,2 +1,4 @@
 from pkg.core import clamp
 
+def test_secret_upper():
+    assert clamp(11, 0, 10) == 10
diff --git a/tests/test_new.py b/tests/test_new.py
new file mode 100644
index 0000000..5555555
--- /dev/null
+++ b/tests/test_new.py
@@ -0,0 +1,2 @@
+def test_secret_new():
+    assert True
"""
F2P = ["tests/test_core.py::test_secret_upper", "tests/test_new.py::test_secret_new"]
P2P = ["tests/test_core.py::test_secret_lower"]
SECRETS = (
    "high_secret_gold_line",
    "test_secret_upper",
    "test_secret_new",
    "test_secret_lower",
    "secret hint",
)
STATEMENT = "clamp() ignores its upper bound: clamp(11, 0, 10) gives 11 although 10 was asked for."
SHA = "0123456789abcdef0123456789abcdef01234567"


def swe_bench(**changes: Any) -> dict[str, Any]:
    """Return a classic row of SWE-bench: lists as JSON strings."""
    return {
        "instance_id": "astropy__astropy-1", "repo": "astropy/astropy", "base_commit": SHA, "patch": CODE_PATCH,
        "test_patch": TEST_PATCH, "problem_statement": STATEMENT, "hints_text": "secret hint", "version": "4.3",
        "created_at": "2020-01-01T00:00:00Z", "FAIL_TO_PASS": json.dumps(F2P), "PASS_TO_PASS": json.dumps(P2P),
        "environment_setup_commit": SHA, "difficulty": "15 min - 1 hour", **changes,
    }  # fmt: skip


def swe_bench_v5(**changes: Any) -> dict[str, Any]:
    """Return a row of SWE-bench 5: includes image, script and parser."""
    script = (
        "#!/bin/bash\n: '>>>>> Start Test Output'\npytest -rA tests/test_core.py\n: '>>>>> End Test Output'\n"
    )
    return swe_bench(
        image="docker.io/swebench/sweb.eval.x86_64.astropy_1776_astropy-1:latest", eval_script=script,
        log_parser="parse_log_pytest", eval_type="pass_and_fail", **changes,
    )  # fmt: skip


def swe_gym(**changes: Any) -> dict[str, Any]:
    """Return a row of SWE-Gym: native lists, no image."""
    row = swe_bench(instance_id="python__mypy-10", repo="python/mypy", version="1.7")
    row["FAIL_TO_PASS"], row["PASS_TO_PASS"] = list(F2P), list(P2P)
    del row["difficulty"], row["environment_setup_commit"]
    return {**row, **changes}


def swe_rebench(**changes: Any) -> dict[str, Any]:
    """Return a row of SWE-rebench v1."""
    config = {
        "install": "pip install -e .", "log_parser": "parse_log_pytest", "python": "3.9", "env_vars": {"A": "b c"},
        "test_cmd": "pytest --no-header -rA",
    }  # fmt: skip
    meta = {"is_lite": True, "llm_score": {"difficulty_score": 1, "issue_text_score": 0, "test_score": 2}}
    row = swe_bench(instance_id="acme__pkg-3", repo="acme/pkg", install_config=config, meta=meta)
    row["FAIL_TO_PASS"], row["PASS_TO_PASS"] = list(F2P), list(P2P)
    return {**row, "docker_image": "swerebench/sweb.eval.x86_64.acme_1776_pkg-3", **changes}


def swe_rebench_v2(**changes: Any) -> dict[str, Any]:
    """Return a row of SWE-rebench V2: colours and durations in test names, its own parsers."""
    row = swe_rebench(language="go", image_name="docker.io/swerebenchv2/acme-pkg:3", **changes)
    row["FAIL_TO_PASS"] = ["\x1b[32mTest_secret_upper\x1b[0m (0.02s)", "test_secret_new [3 ms]"]
    row["install_config"] = {
        "test_cmd": ["go build ./...", "go test -v ./..."],
        "log_parser": "parse_log_gotest",
    }
    del row["docker_image"]
    return {**row, **changes}


def swe_smith(**changes: Any) -> dict[str, Any]:
    """Return a row of SWE-smith: the patch introduces the bug."""
    bug = CODE_PATCH.replace("+    if value > high_secret_gold_line:", "#").replace(
        "-    if value < high:", "+    if value < high:"
    )
    bug = bug.replace("#", "-    if value > high_secret_gold_line:")
    head, plus = "+    if value < high:\n", "-    if value > high_secret_gold_line:\n"
    return {
        "instance_id": "acme__pkg.01234567.func_1", "patch": bug.replace(head + plus, plus + head),
        "FAIL_TO_PASS": list(F2P), "PASS_TO_PASS": list(P2P), "image_name": "swesmith.x86_64.acme__pkg.01234567",
        "repo": "swesmith/acme__pkg.01234567", "problem_statement": STATEMENT, **changes,
    }  # fmt: skip


def multi_swe(**changes: Any) -> dict[str, Any]:
    """Return a row of Multi-SWE-RL."""
    change = {"run": "FAIL", "test": "FAIL", "fix": "PASS"}
    result = {"passed_count": 1, "failed_count": 1, "skipped_count": 0, "passed_tests": ["test_secret_lower"],
              "failed_tests": ["test_secret_upper"], "skipped_tests": []}  # fmt: skip
    return {
        "org": "cli", "repo": "cli", "number": 42, "state": "closed", "title": "Mend clamp", "body": "secret hint",
        "base": {"label": "cli:trunk", "ref": "trunk", "sha": SHA},
        "resolved_issues": [{"number": 7, "title": "clamp is broken", "body": STATEMENT}],
        "fix_patch": CODE_PATCH, "test_patch": TEST_PATCH, "tag": "bug", "lang": "go",
        "fixed_tests": {"test_secret_upper": change}, "f2p_tests": {"test_secret_upper": change},
        "p2p_tests": {"test_secret_lower": {"run": "PASS", "test": "PASS", "fix": "PASS"}}, "s2p_tests": {},
        "n2p_tests": {"test_secret_new": {"run": "NONE", "test": "NONE", "fix": "PASS"}},
        "run_result": result, "test_patch_result": result, "fix_patch_result": result, **changes,
    }  # fmt: skip


def swe_bench_pro(**changes: Any) -> dict[str, Any]:
    """Return a row of SWE-bench Pro: lower-case names, lists as Python literals."""
    row = {
        "instance_id": f"instance_NodeBB__NodeBB-{SHA}-vnan", "repo": "NodeBB/NodeBB", "base_commit": SHA,
        "patch": CODE_PATCH, "test_patch": TEST_PATCH, "problem_statement": STATEMENT, "requirements": "It must clamp.",
        "interface": "No new interfaces.", "repo_language": "js", "fail_to_pass": repr(F2P), "pass_to_pass": repr(P2P),
        "issue_specificity": "['bug']", "issue_categories": "['core']",
        "before_repo_set_cmd": f"git reset --hard {SHA}\ngit clean -fd\ngit checkout abc -- tests/test_core.py",
        "selected_test_files_to_run": "['tests/test_core.py']",
    }  # fmt: skip
    return {**row, **changes}


def hunk(start: int, lines: list[tuple[str, str]]) -> dict[str, Any]:
    """Return a parsed hunk."""
    old = sum(kind in ("context", "deleted") for kind, _ in lines)
    new = sum(kind in ("context", "added") for kind, _ in lines)
    return {
        "descriptor": {
            "old_range": {"start": start, "length": old}, "new_range": {"start": start, "length": new}, "section": "",
        },
        "line_group": {"all_lines": [{"content": text, "type": kind} for kind, text in lines]},
        "modified_entities": [], "added_entities": [], "deleted_entities": [],
    }  # fmt: skip


OLD_CODE = "def clamp(value, low, high):\n    if value < high:\n        return high\n"
NEW_CODE = OLD_CODE.replace("value < high:", "value > high_secret_gold_line:")


def parsed_commit(**changes: Any) -> dict[str, Any]:
    """Return a parsed commit that fixes ``pkg/core.py`` and adds a test and a picture."""
    code = {
        "old_file_content": OLD_CODE, "new_file_content": NEW_CODE,
        "header": {"file": {"path": "pkg/core.py"}, "misc_line": None},
        "index_line": {"old_commit_hash": "1111111", "new_commit_hash": "2222222", "mode": "100644"},
        "is_binary_file": False, "binary_line": None, "minus_file": {"path": "a/pkg/core.py"},
        "plus_file": {"path": "b/pkg/core.py"},
        "hunks": [hunk(1, [("context", "def clamp(value, low, high):"), ("deleted", "    if value < high:"),
                           ("added", "    if value > high_secret_gold_line:"), ("context", "        return high")])],
    }  # fmt: skip
    test = {
        "old_file_content": "", "new_file_content": "def test_secret_new():\n    pass\n",
        "header": {"file": {"path": "pkg/tests/test_core.py"}, "misc_line": "new file mode 100644"},
        "index_line": None, "is_binary_file": False, "binary_line": None, "minus_file": {"path": "/dev/null"},
        "plus_file": {"path": "b/pkg/tests/test_core.py"},
        "hunks": [{**hunk(0, [("added", "def test_secret_new():"), ("added", "    pass")]),
                   "descriptor": {"old_range": {"start": 0, "length": 0}, "new_range": {"start": 1, "length": 2},
                                  "section": ""}}],
    }  # fmt: skip
    picture = {**code, "header": {"file": {"path": "doc/x.png"}}, "is_binary_file": True,
               "binary_line": "Binary files a/doc/x.png and b/doc/x.png differ", "hunks": []}  # fmt: skip
    return {
        "file_diffs": [code, test, picture], "old_commit_hash": SHA, "new_commit_hash": "f" * 40,
        "commit_message": "Mend it", "commit_date": "2020-01-01T00:00:00", "metadata": {}, **changes,
    }  # fmt: skip


OLD_LOG = (
    "=== short test summary info ===\n"
    "FAILED r2e_tests/test_1.py::TestCore::test_secret_upper - assert 11 == 10\n"
    "PASSED r2e_tests/test_1.py::TestCore::test_secret_lower\n"
)


def r2e_gym(**changes: Any) -> dict[str, Any]:
    """Return a row of R2E-Gym: no id, no patch, no lists."""
    expected = {"\x1b[1mTestCore.test_secret_upper\x1b[0m": "PASSED", "TestCore.test_secret_lower": "PASSED",
                "TestCore.test_odd - KeyError": "FAILED"}  # fmt: skip
    results = {
        "repo_name": "aiohttp", "new_commit_hash": "f" * 40, "test_file_codes": ["def test_secret_upper(): ..."],
        "test_file_names": ["test_1.py"], "old_commit_res_stdout": OLD_LOG,
    }  # fmt: skip
    return {
        "repo_name": "aiohttp", "docker_image": "namanjain12/aiohttp_final:" + "f" * 40, "commit_hash": "f" * 40,
        "parsed_commit_content": json.dumps(parsed_commit()), "execution_result_content": json.dumps(results),
        "expected_output_json": json.dumps(expected), "modified_files": ["pkg/core.py"],
        "relevant_files": ["pkg/core.py"], "modified_entity_summaries": [{"file_name": "pkg/core.py", "name": "clamp"}],
        "num_non_test_files": 1, "num_non_test_func_methods": 1, "num_non_test_lines": 2,
        "prompt": "high_secret_gold_line", "problem_statement": f"[ISSUE]\n{STATEMENT}\n[/ISSUE]\n", **changes,
    }  # fmt: skip


def r2e_verified(**changes: Any) -> dict[str, Any]:
    """Return a row of R2E-Gym's variant of SWE-bench Verified."""
    return swe_bench(
        docker_image="namanjain12/swebench_astropy:1", parsed_commit=json.dumps(parsed_commit()),
        run_tests_regression="pytest secret hint", **changes,
    )  # fmt: skip


ROWS = {
    "r2e-gym": r2e_gym, "swe-gym": swe_gym, "swe-bench": swe_bench, "swe-smith": swe_smith, "swe-rebench": swe_rebench,
    "swe-rebench-v2": swe_rebench_v2, "multi-swe-rl": multi_swe, "swe-bench-pro": swe_bench_pro,
}  # fmt: skip
