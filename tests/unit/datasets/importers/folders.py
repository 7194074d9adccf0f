"""Hand-written task folders of SWE-bench 5 and of Harbor."""
# ruff: noqa: E501, W293  (literal rows)

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.datasets.importers.rows import CODE_PATCH, F2P, P2P, SHA, STATEMENT, TEST_PATCH

HARBOR_TOML = """\
schema_version = "1.4"
[task]
name = "acme/clamp"
[metadata]
difficulty = "easy"
language = "python"
[agent]
timeout_sec = 900.0
[verifier]
timeout_sec = 120.0
env = { MODE = "it's strict" }
[environment]
docker_image = "acme/clamp:1"
workdir = "/work"
memory_mb = 2048
"""


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    """Write the given files below a folder and return it."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def task_repo(root: Path, instance_id: str = "acme__pkg-5", **changes: str | None) -> Path:
    """Write one instance of a task repository; a change of None omits the file."""
    files: dict[str, str | bytes | None] = {
        "task.yaml": (
            f"instance_id: {instance_id}\nrepo: acme/pkg\nversion: 1.10\nbase_commit: {SHA}\nsplit: test\n"
            "image: acme/pkg:5\nlog_parser: parse_log_pytest\neval_type: pass_and_fail\ndatasets:\n- acme/Set\n"
        ),
        "tests.json": json.dumps({"FAIL_TO_PASS": F2P, "PASS_TO_PASS": P2P}),
        "problem_statement.md": STATEMENT,
        "hints.md": "secret hint",
        "gold.patch": CODE_PATCH.replace("return low\n", "return low\r\n"),
        "test.patch": TEST_PATCH,
        "eval.sh": "#!/bin/bash\npytest -rA\n",
        "Dockerfile": "FROM scratch\n",
        **changes,
    }
    return write(root / "tasks" / instance_id, {k: v for k, v in files.items() if v is not None})


def harbor_task(root: Path, name: str = "clamp", **changes: str | bytes | None) -> Path:
    """Write a Harbor task; a change of None omits the file."""
    files: dict[str, str | bytes | None] = {
        "task.toml": HARBOR_TOML,
        "instruction.md": STATEMENT,
        "environment/Dockerfile": "FROM python:3.11\n",
        "tests/test.sh": "pytest /tests/test_secret_upper.py && echo 1 > /logs/verifier/reward.txt\n",
        "tests/test_secret_upper.py": "def test_secret_upper(): ...\n",
        "solution/solve.sh": "sed -i s/x/high_secret_gold_line/ /work/core.py\n",
        **changes,
    }
    return write(root / name, {k: v for k, v in files.items() if v is not None})
