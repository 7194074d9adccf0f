"""Predictions graded and reported in the official harnesses' formats; complete logs; setup patches."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.datasets.store import load_dataset, save_dataset, with_content_id
from engine.grading.__main__ import main
from engine.grading.official.reports import regrade
from engine.patches.diff import diff_texts
from engine.sandbox.local.backend import LocalBackend
from engine.types import GradeRule, TaskRow, Verdict
from tests.builders.dataset_builders import BROKEN, NUMBERS, make_grader, patched
from tests.integration.adversary.frame import find, under

STILL_BROKEN = NUMBERS.replace(*BROKEN)
Command = Callable[..., tuple[dict[str, Any], str]]
NOT_THERE = ("tests/test_numbers.py::test_of_another_version",)
NAMES = ("log", "solved", "cheats", "unapplied", "empty", "absent")


@pytest.fixture(scope="module")
def dataset(home: Path, row: TaskRow) -> str:
    rows = []
    for name in NAMES:
        kind = "signed" if name == "solved" else "log"
        task_row = under(row, kind)
        rows.append(with_content_id(replace(task_row, task=replace(row.task, instance_id=name))))
    save_dataset(home, "toy", rows, {"sources": []})
    return "toy"


@pytest.fixture
def grade(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs the command and returns its printed counts and messages."""

    def command(*arguments: str) -> tuple[dict[str, Any], str]:
        folders = ["--home", str(home), "--dataset", "toy", "--output", str(tmp_path)]
        limits = ["--set", "sandbox.memory_mb=256", "--set", "grading.timeout_s=60"]
        main(["predictions", *folders, *limits, *arguments])
        output, messages = capsys.readouterr()
        return json.loads(output.strip().split("\n")[-1]) if output else {}, messages

    return command


@pytest.mark.usefixtures("dataset")
def test_predictions_are_reported_and_a_second_command_resumes(
    home: Path, row: TaskRow, tmp_path: Path, grade: Command
) -> None:
    rows = {entry.task.instance_id: entry for entry in load_dataset(home, "toy").rows}
    gold = row.answer.gold_patch
    patches = {
        "log": gold,
        "solved": gold,
        "cheats": find("forged lines and exit").patch,
        "unapplied": diff_texts("toy/numbers.py", "not there\n", "x\n"),
        "empty": "",
    }
    file = tmp_path / "predictions.jsonl"
    lines = [
        {"instance_id": name, "model_name_or_path": "a/model", "model_patch": patch}
        for name, patch in patches.items()
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    counts, messages = grade("--predictions", str(file), "--run-id", "r1")
    assert counts, messages
    assert counts["verdicts"] == {"passed": 2, "patch_failed": 1, "tampered": 1}
    report = json.loads((tmp_path / "a__model.r1.json").read_text())
    categories = ("resolved", "unresolved", "error", "empty_patch", "incomplete")
    assert {name: report[f"{name}_ids"] for name in categories} == {
        "resolved": ["log", "solved"],
        "unresolved": ["cheats"],
        "error": ["unapplied"],
        "empty_patch": ["empty"],
        "incomplete": ["absent"],
    }
    folder = tmp_path / "logs" / "run_evaluation" / "r1" / "a__model" / "log"
    stored = json.loads((folder / "report.json").read_text())
    fields = {"instance_id": "log", "FAIL_TO_PASS": list(row.answer.fail_to_pass)}
    fields |= {"PASS_TO_PASS": list(row.answer.pass_to_pass), "log_parser": "parse_log_pytest"}
    assert regrade(fields, (folder / "test_output.txt").read_text()) == stored
    resumed, _ = grade("--predictions", str(file), "--run-id", "r1")
    assert resumed["verdicts"] == {"known": 3, "patch_failed": 1}
    assert resumed["resolved"] == counts["resolved"] == 2
    assert (folder / "run_instance.log").read_text().startswith("passed: ")
    other_row = with_content_id(
        replace(rows["log"], answer=replace(rows["log"].answer, fail_to_pass=NOT_THERE))
    )
    save_dataset(home, "toy", [*(entry for name, entry in rows.items() if name != "log"), other_row], {})
    changed, _ = grade("--predictions", str(file), "--run-id", "r1")
    assert changed["verdicts"] == {"known": 2, "patch_failed": 1, "failed": 1}, "the tests of the row changed"
    save_dataset(home, "toy", list(rows.values()), {"sources": []})
    file.write_text(json.dumps(lines[0] | {"model_patch": patches["cheats"]}))
    changed, _ = grade("--predictions", str(file), "--run-id", "r1")
    assert changed["verdicts"] == {"tampered": 1}, "a report of another patch counts for this one"


def test_multi_swe_predictions_are_reported_in_its_format(
    home: Path, row: TaskRow, tmp_path: Path, grade: Command
) -> None:
    log_row = under(row, "log")
    before = {"run_result": {}, "test_patch_result": {}, "n2p_tests": list(row.answer.fail_to_pass)}
    answer = replace(log_row.answer, grade_rule=GradeRule.MULTI_SWE, metadata=before)
    task = replace(row.task, instance_id="acme__toy-7", repo="acme/toy")
    save_dataset(
        home, "multi", [with_content_id(replace(log_row, task=task, answer=answer))], {"sources": []}
    )
    fix = {"org": "acme", "repo": "toy", "number": "7", "fix_patch": row.answer.gold_patch}
    file = tmp_path / "predictions.jsonl"
    file.write_text(f"{{broken\n{json.dumps(fix)}\n{json.dumps({**fix, 'number': 8})}\n")
    counts, messages = grade("--predictions", str(file), "--dataset", "multi", "--run-id", "m")
    assert counts, messages
    assert (counts["resolved"], counts["rejected"]) == (1, 2)
    assert counts["first_rejects"][0].startswith("line 1: not JSON")
    assert counts["first_rejects"][1] == "line 3: the instance is not in the dataset: acme__toy-8"
    final = json.loads((tmp_path / "None.m.final_report.json").read_text())
    assert (final["total_instances"], final["resolved_ids"]) == (1, ["acme/toy:pr-7"])
    folder = tmp_path / "logs" / "run_evaluation" / "m" / "None" / "acme__toy-7"
    report = json.loads((folder / "multi_swe_report.json").read_text())
    assert (report["number"], report["valid"]) == (7, True)
    assert set(row.answer.fail_to_pass) <= set(report["n2p_tests"])


@pytest.mark.usefixtures("dataset")
def test_unknown_instances_and_settings_are_refused(tmp_path: Path, grade: Command) -> None:
    (tmp_path / "p.jsonl").write_text('{"instance_id": "nobody", "model_patch": "x"}')
    counts, messages = grade("--predictions", str(tmp_path / "p.jsonl"))
    assert (counts, "not in the dataset: nobody" in messages) == ({}, True)
    _, messages = grade("--predictions", "gold", "--set", "grading.timeout=3")
    assert "grading.timeout: unknown setting" in messages


async def test_complete_log_is_kept(home: Path, row: TaskRow) -> None:
    noisy = NUMBERS.replace(
        '"""Small',
        'import sys\nfor _ in range(40_000):\n    sys.__stderr__.write("noise %d\\n" % _)\n"""Small',
    )
    script = under(row, "log")
    command = script.answer.test_command.replace("-p no:cacheprovider", "-s -p no:cacheprovider")
    noisy_row = replace(script, answer=replace(script.answer, test_command=command))
    grade = await make_grader(LocalBackend(home), timeout_s=60.0).grade(noisy_row, patched(noisy))
    assert grade.verdict is Verdict.PASSED, grade.detail
    complete = zlib.decompress(grade.whole_log).decode()
    assert len(grade.log) < 21_000 < len(complete)
    assert all(line in complete for line in ("noise 0\n", "noise 20000\n", "noise 39999\n", "6 passed"))
    assert complete.startswith(grade.log[:9_000])


async def test_setup_patch_is_applied_before_the_prediction(home: Path, row: TaskRow) -> None:
    """The setup patch adds a bug; predictions are relative to the tree with that bug."""
    worse = STILL_BROKEN.replace("return total / count", "return total")
    answer = replace(
        row.answer,
        setup_patch=diff_texts("toy/numbers.py", STILL_BROKEN, worse),
        gold_patch=diff_texts("toy/numbers.py", worse, NUMBERS),
    )
    task_row = replace(row, answer=answer)
    grader = make_grader(LocalBackend(home), timeout_s=60.0)
    assert (await grader.grade(task_row, answer.gold_patch)).verdict is Verdict.PASSED
