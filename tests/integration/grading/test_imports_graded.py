"""Rows of published formats, imported, then graded unpatched and with the gold patch."""
# ruff: noqa: E501  (literal rows)

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from engine.config.importing import ImportConfig
from engine.datasets.importers.run import import_dataset
from engine.datasets.store import load_dataset
from engine.orchestrator.importing import obstacle
from engine.patches.diff import diff_texts
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.local.images import build_image
from engine.testing.toolchain import MOUNT
from engine.types import TaskRow, Verdict
from tests.builders.dataset_builders import (
    BROKEN,
    NO_PLUGINS,
    NUMBERS,
    TEST_NUMBERS,
    make_grader,
    new_file,
    toolchain_or_skip,
    write_toy,
)
from tests.unit.datasets.importers import folders, rows

BROKEN_NUMBERS = NUMBERS.replace(*BROKEN)
GOLD = diff_texts("toy/numbers.py", BROKEN_NUMBERS, NUMBERS)
NEW_TEST = "from toy.numbers import clamp\n\n\ndef test_upper():\n    assert clamp(11, 0, 10) == 10\n"
CHANGED_TESTS = TEST_NUMBERS.replace("(0, 0)", "(0, 0), (99, 10)")
TEST_PATCH = diff_texts("tests/test_numbers.py", TEST_NUMBERS, CHANGED_TESTS) + new_file(
    "tests/test_upper.py", NEW_TEST
)
F2P = ["tests/test_numbers.py::test_clamp[99-10]", "tests/test_upper.py::test_upper"]
P2P = ["tests/test_numbers.py::test_positives"]
PYTEST = f"python3 -m pytest --no-header -rA -p no:cacheprovider {NO_PLUGINS} -c /dev/null --rootdir=/testbed"
PYTEST_ON_PATH = f'#!/bin/sh\nexec {PYTEST} "$@"\n'
PATCHED = {"patch": GOLD, "test_patch": TEST_PATCH}
TESTS = {"FAIL_TO_PASS": F2P, "PASS_TO_PASS": P2P}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data folder with two repository images: ``local:broken`` for the task, and ``local:intact``."""
    folder = tmp_path_factory.mktemp("home")
    binds = {MOUNT: str(toolchain_or_skip(folder))}
    environment = {
        "PATH": "/testbed/bin:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": f"/testbed:{MOUNT}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for name, code in (("broken", BROKEN_NUMBERS), ("intact", NUMBERS)):
        tree = write_toy(folder / name)
        (tree / "toy/numbers.py").write_text(code)
        (tree / "r2e_tests").mkdir()
        (tree / "r2e_tests/test_1.py").write_text(NEW_TEST)
        (tree / "run_tests.sh").write_text(f"{PYTEST} r2e_tests\n")
        (tree / "bin").mkdir()
        (tree / "bin/pytest").write_text(PYTEST_ON_PATH)
        (tree / "bin/pytest").chmod(0o755)
        for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "base"]):
            subprocess.run(
                ["git", "-c", "user.name=a", "-c", "user.email=a@b", *command], cwd=tree, check=True
            )
        build_image(folder, name, tree, env=environment, binds=binds)
    return folder


def commit_of(home: Path, name: str) -> str:
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=home / name, check=True, capture_output=True, text=True).stdout.strip()


def imported(home: Path, form: str, source: Path) -> TaskRow:
    config = ImportConfig(format=form, source=str(source), output=form, mode="replace")
    result = import_dataset(config, home=home, gradable=obstacle)
    assert (result.imported, result.ungradable) == (1, 0)
    return load_dataset(home, form).rows[0]


def one_row(home: Path, form: str, row: dict[str, Any]) -> TaskRow:
    source = home / f"{form}.jsonl"
    source.write_text(json.dumps(row) + "\n")
    return imported(home, form, source)


def relocated(home: Path, row: TaskRow, places: dict[str, str]) -> TaskRow:
    """Return the row with other paths: local images can write only to ``/testbed`` and ``/tmp``."""
    text = json.dumps(asdict(row))
    for old, new in places.items():
        text = text.replace(old, new)
    return one_row(home, "trainyard", json.loads(text))


async def verdicts(home: Path, row: TaskRow, *patches: str) -> list[Verdict]:
    grader = make_grader(LocalBackend(home), reuse=False)
    grades = [await grader.grade(row, patch) for patch in patches]
    if grades[-1].verdict is not Verdict.PASSED:
        print(grades[-1].detail, grades[-1].log[-3000:])
    return [grade.verdict for grade in grades]


async def test_swe_rebench_row_fails_unpatched_and_passes_with_the_gold_patch(home: Path) -> None:
    row = rows.swe_rebench(
        base_commit=commit_of(home, "broken"), patch=GOLD, test_patch=TEST_PATCH, FAIL_TO_PASS=F2P, PASS_TO_PASS=P2P,
        docker_image="local:broken", install_config={"test_cmd": PYTEST, "log_parser": "parse_log_pytest"},
    )  # fmt: skip
    task = one_row(home, "swe-rebench", row)
    edited = GOLD + diff_texts("tests/test_numbers.py", TEST_NUMBERS, "")
    assert await verdicts(home, task, "", edited) == [Verdict.FAILED, Verdict.PASSED]


async def test_r2e_gym_row_fails_unpatched_and_passes_with_the_gold_patch(home: Path) -> None:
    commit = rows.parsed_commit()
    commit["file_diffs"] = commit["file_diffs"][:1]
    code = commit["file_diffs"][0]
    code["header"]["file"]["path"] = "toy/numbers.py"
    code |= {"old_file_content": BROKEN_NUMBERS, "new_file_content": NUMBERS}
    results = {"test_file_names": ["test_1.py"], "test_file_codes": [NEW_TEST]}
    row = rows.r2e_gym(
        docker_image="local:broken", parsed_commit_content=json.dumps(commit),
        expected_output_json=json.dumps({"test_upper": "PASSED"}), execution_result_content=json.dumps(results),
    )  # fmt: skip
    task = one_row(home, "r2e-gym", row)
    assert await verdicts(home, task, "", task.answer.gold_patch) == [Verdict.FAILED, Verdict.PASSED]


async def test_swe_smith_row_fails_unpatched_and_passes_with_the_gold_patch(home: Path) -> None:
    bug = diff_texts("toy/numbers.py", NUMBERS, BROKEN_NUMBERS)
    failing = ["tests/test_numbers.py::test_clamp[11-10]", "tests/test_numbers.py::test_clamp[5-5]"]
    row = rows.swe_smith(patch=bug, image_name="local:intact", FAIL_TO_PASS=failing, PASS_TO_PASS=P2P)
    task = one_row(home, "swe-smith", row)
    assert task.answer.gold_patch == GOLD
    assert await verdicts(home, task, "", task.answer.gold_patch) == [Verdict.FAILED, Verdict.PASSED]


async def test_swe_bench_row_fails_unpatched_and_passes_with_the_gold_patch(home: Path) -> None:
    commit = commit_of(home, "broken")
    row = rows.swe_bench(
        repo="pytest-dev/pytest", version="5.2", base_commit=commit, image="local:broken", **PATCHED, **TESTS
    )
    task = one_row(home, "swe-bench", row)
    assert await verdicts(home, task, "", GOLD) == [Verdict.FAILED, Verdict.PASSED]


PRO_PARSER = """
import json, re, sys
found = re.findall(r"^(PASSED|FAILED|ERROR) (\\S+)", open(sys.argv[1]).read(), re.MULTILINE)
tests = [{"name": name, "status": status} for status, name in found]
json.dump({"tests": tests}, open(sys.argv[3], "w"))
"""


async def test_swe_bench_pro_row_fails_unpatched_and_passes_with_the_gold_patch(home: Path) -> None:
    row = rows.swe_bench_pro(
        base_commit=commit_of(home, "broken"), image_name="local:broken", before_repo_set_cmd="",
        fail_to_pass=repr(F2P[:1]), pass_to_pass=repr(P2P), **PATCHED,
    )  # fmt: skip
    run = f"cd /app && git apply - <<'EOF'\n{TEST_PATCH}EOF\n{PYTEST} tests\n"
    task = one_row(home, "swe-bench-pro", row | {"run_script.sh": run, "parser.py": PRO_PARSER})
    task = relocated(home, task, {"/app": "/testbed", "/workspace": "/tmp/workspace"})
    assert task.answer.metadata["parser"]["script"] == "/tmp/workspace/parser.py"
    assert await verdicts(home, task, "", GOLD) == [Verdict.FAILED, Verdict.PASSED]


async def test_harbor_task_fails_unpatched_and_passes_with_the_gold_patch(home: Path) -> None:
    changes: dict[str, Any]
    toml = folders.HARBOR_TOML.replace("acme/clamp:1", "local:broken").replace('"/work"', '"/testbed"')
    script = (
        f"{PYTEST} /tests/test_secret_upper.py\n"
        "if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    )
    script = f"cmp -s /tests/data.bin <(printf '\\000\\377') || exit 1\n{script}"
    changes = {"task.toml": toml, "tests/test.sh": script, "tests/test_secret_upper.py": NEW_TEST}
    changes |= {"tests/data.bin": b"\0\xff"}
    task = imported(home, "harbor", folders.harbor_task(home / "harbor", **changes).parent)
    task = relocated(home, task, {"/logs/verifier": "/tmp/verifier", "/tests/": "/tmp/tests/"})
    assert await verdicts(home, task, "", GOLD) == [Verdict.FAILED, Verdict.PASSED]
