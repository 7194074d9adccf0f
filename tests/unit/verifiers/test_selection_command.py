"""Tables of rollouts in files, and the command that prints their curves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.errors import DatasetError
from engine.verifiers.selection.__main__ import EXIT_BAD_INPUT, main
from engine.verifiers.selection.tables import read_table

ROWS: list[dict[str, Any]] = [
    {
        "task_id": "a",
        "trajectory_id": 7,
        "resolved": True,
        "p_yes": 0.2,
        "steps": 9,
        "patch_hash": "x",
        "x": 1,
    },
    {"task_id": "a", "trajectory_id": "8", "resolved": False, "p_yes": 0.9, "steps": 3, "patch_hash": "y"},
    {"task_id": "b", "trajectory_id": "9", "resolved": True, "p_yes": 1, "steps": 4, "patch_hash": ""},
    {"task_id": "b", "trajectory_id": "10", "resolved": True, "p_yes": 0.0, "steps": 4, "patch_hash": None},
]


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_become_candidates_and_a_null_stays_a_missing_score(tmp_path: Path) -> None:
    table = read_table(write_table(tmp_path / "t.jsonl", ROWS))
    assert [candidate.trajectory_id for candidate in table] == ["7", "8", "9", "10"]
    assert [candidate.patch_hash for candidate in table] == ["x", "y", "", None]
    assert table[0].regression_passes is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task_id": None}, "has no task_id"),
        ({"steps": True}, "is True; expected int"),
        ({"resolved": 1}, "is 1; expected bool"),
        ({"p_yes": "0.5"}, "is '0.5'; expected int or float"),
        ({"p_yes": float("nan")}, "is nan; leave out what is unknown"),
        ({"p_yes": 2}, "p_yes = 2"),
    ],
)
def test_malformed_rows_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write_table(tmp_path / "t.jsonl", [ROWS[0], {**ROWS[1], **change}])
    with pytest.raises(DatasetError, match=message):
        read_table(path)


def test_the_command_prints_curves(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.jsonl", ROWS)
    command = [
        sys.executable,
        "-m",
        "engine.verifiers.selection",
        str(path),
        "--rule",
        "ef",
        "--rule",
        "oracle",
    ]
    printed = subprocess.run([*command], capture_output=True, text=True, check=True).stdout  # noqa: S603
    assert printed.split() == ["K", "ef", "oracle", "1", "75.0", "75.0", "2", "50.0", "100.0"]
    as_json = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout  # noqa: S603
    ef, _ = json.loads(as_json)
    assert [(point["k"], point["rate"]) for point in ef["points"]] == [(1, 0.75), (2, 0.5)]


def test_short_tasks_are_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_table(tmp_path / "t.jsonl", ROWS[:3])
    assert main([str(path), "--rule", "oracle", "--k", "1", "--k", "2", "--short", "all"]) == 0
    assert capsys.readouterr().out.split() == ["K", "oracle", "1", "75.0", "*2", "100.0"]


def test_a_rule_that_lacks_a_score_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_table(tmp_path / "t.jsonl", ROWS)
    assert main([str(path), "--k", "1"]) == 0
    printed = capsys.readouterr()
    assert printed.out.split()[:4] == ["K", "ef", "oracle", "1"]
    for rule, line in zip(("shortest", "majority"), printed.err.splitlines(), strict=True):
        assert line.startswith("left out: 1 of 4 rollouts have no patch_hash, such as trajectory 10 of")
        assert f"{rule} needs it of all" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rule", "best"], "there is no rule 'best'; the rules are ef, eb, hybrid"),
        (["--k", "3"], "K = 3 is more than the rollouts of 2 of 2 tasks"),
        (["--keep", "0"], "the least is 1"),
        (["--rule", "eb"], "4 of 4 rollouts have no regression_passes"),
        (["--rule", "majority"], "1 of 4 rollouts have no patch_hash"),
    ],
)
def test_invalid_arguments_are_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    path = write_table(tmp_path / "t.jsonl", ROWS)
    assert main([str(path), *arguments]) == EXIT_BAD_INPUT
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("field", ["p_yes", "regression_passes", "steps", "tokens"])
def test_numbers_too_large_for_a_float_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str
) -> None:
    path = write_table(tmp_path / "t.jsonl", [{**ROWS[0], field: 10**400}])
    assert main([str(path)]) == EXIT_BAD_INPUT
    assert f"{field} = 100000" in (error := capsys.readouterr().err)
    assert "finite number" in error
