"""Placement of test files by scripts: its position and its commands."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from engine.datasets.importers.formats.evalscript import make_script
from engine.datasets.importers.formats.multi_swe import TEST_COMMAND
from engine.grading.running.placement import commands, placing_command, with_placement
from engine.patches.diff import diff_texts
from engine.testing.markers import END, START
from tests.builders.dataset_builders import TEST_NUMBERS

EVERY_BYTE = bytes(range(1, 256)) + f"'{START}' {{junit}} PYTHONPATH=x \\' $HOME `id` ÿ\n\n".encode()
PLACING = "PLACED"


def test_placing_commands_write_every_byte_with_builtins_only(tmp_path: Path) -> None:
    files = {"tests/it's.py": EVERY_BYTE, str(tmp_path / "absolute.py"): b"\n", "tests/empty.py": b""}
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/empty.py").write_text("old")
    command = placing_command(str(tmp_path), files)
    assert not any(text in command for text in (START, "{junit}", "PYTHONPATH=", "\n"))
    done = subprocess.run(
        ["/bin/bash", "-c", 'eval "$(cat)"'],
        input=f"set -euxo pipefail; set -o noclobber; PATH=; cd /\n{command}\necho on\n".encode(),
        capture_output=True, check=True, cwd="/",
    )  # fmt: skip
    assert {path: (tmp_path / path).read_bytes() for path in files} == files
    assert done.stdout == b"on\n"
    assert b"printf" not in done.stderr  # the shell's trace does not show the tests


def test_a_marked_script_places_tests_at_its_start_marker() -> None:
    patch = diff_texts("tests/test_numbers.py", TEST_NUMBERS, f"{TEST_NUMBERS}\ngit apply x\n")
    script = make_script(
        workdir="/testbed", base_commit="abc", test_patch=patch, test=["pytest"], build=["pip install -e ."]
    )
    placed = with_placement(script, PLACING)
    assert placed is not None
    at = placed.split("\n").index(PLACING)
    assert placed.split("\n")[at - 1] == "pip install -e ."
    assert START in placed.split("\n")[at + 1]


def test_tests_are_placed_before_an_earlier_line_that_runs_them() -> None:
    lines = ["#!/bin/bash", "git checkout abc -- tests", "bash /workspace/run_script.sh 'a' > log", "cat log"]
    script = "\n".join([*lines, f"echo '{START}'", f"echo '{END}'"])
    placed = with_placement(script, PLACING, ["/workspace/run_script.sh", "/workspace/x.sh"])
    assert placed is not None
    assert placed.split("\n")[2:4] == [PLACING, lines[2]]


def test_a_script_that_applies_a_patch_places_tests_after_it() -> None:
    script = "cd /r\ngit -C /r apply -v \\\n  /home/test.patch\nmvn test\ngit checkout -- tests"
    assert with_placement(script, PLACING) == script.replace("mvn", f"{PLACING}\nmvn")
    heredoc = "git apply -v - <<'EOF_1'\n+ a line\nEOF_1\npytest\n"
    assert with_placement(heredoc, PLACING) == heredoc.replace("pytest", f"{PLACING}\npytest")
    checked = "if ! git apply /home/test.patch; then\n  exit 1\nfi\nnpm test\n"
    assert with_placement(checked, PLACING) == checked.replace("npm", f"{PLACING}\nnpm")
    assert with_placement("patch -p1 < /t\npytest\n", PLACING) == f"patch -p1 < /t\n{PLACING}\npytest\n"


def test_other_scripts_place_no_tests() -> None:
    assert with_placement(TEST_COMMAND, PLACING) is None
    assert with_placement("# git apply later\ncat <<EOF\ngit apply x\nEOF\npytest\n", PLACING) is None


@pytest.mark.parametrize("line", ['read a <<< "abc"', "N=$((1 << 20))", "(( flags << 3 ))", "cat <<Y"])
def test_operators_without_an_end_line_are_no_here_documents(line: str) -> None:
    script = f"{line}\ngit apply /t\npytest\nabc\n"
    assert list(commands(script))[:2] == [(0, 1, line), (1, 2, "git apply /t")]
    assert with_placement(script, PLACING) == script.replace("pytest", f"{PLACING}\npytest")
