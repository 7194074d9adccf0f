"""Logs regraded exactly as by the official harness; predictions and reports in its formats."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import isolation
from engine.errors import DatasetError
from engine.events.harness import Prediction
from engine.grading.__main__ import main as grading_command
from engine.grading.grader import GRADER_VERSION
from engine.grading.logs.swebench import classify_failure
from engine.grading.official import multi_swe_reports, predictions
from engine.grading.official.prediction_files import PredictionFile, read_predictions
from engine.grading.official.predictions import PredictionSettings
from engine.grading.official.reports import InstanceResult, regrade, run_report
from engine.types import Grade, GradeRule, TaskAnswer, TaskRow, Verdict
from tests.builders.rollout_builders import make_row

PUBLISHED = Path(__file__).resolve().parents[4] / "shared" / "data" / "swe_smith_logs"
START, END = ">>>>> Start Test Output", ">>>>> End Test Output"


def row(**changes: Any) -> dict[str, Any]:
    return {
        "instance_id": "a__b-1",
        "FAIL_TO_PASS": ["t.py::test_new"],
        "PASS_TO_PASS": ["t.py::test_old"],
        "log_parser": "parse_log_pytest",
        **changes,
    }


def log(*lines: str, exit_code: int | None = None) -> str:
    tail = [] if exit_code is None else [f">>>>> Test Exit Code: {exit_code}"]
    return "\n".join(["+ setup", START, *lines, END, *tail, ""])


def report(text: str, **changes: Any) -> dict[str, Any]:
    graded: dict[str, Any] = regrade(row(**changes), text)["a__b-1"]
    return graded


@pytest.mark.parametrize(
    "name", ["pandas-dev__pandas.95280573.pr_53652", "pydantic__pydantic.acb0f10f.pr_8316"]
)
def test_a_published_report_is_reproduced(name: str) -> None:
    folder = PUBLISHED / name
    if not folder.is_dir():
        pytest.skip(f"the published logs are not at {PUBLISHED.name}")
    published = json.loads((folder / "report.json").read_text())
    tests = published["tests_status"]
    kinds = ("FAIL_TO_PASS", "PASS_TO_PASS")
    required = {kind: tests[kind]["success"] + tests[kind]["failure"] for kind in kinds}
    row = {"instance_id": name, "log_parser": "swesmith_pytest", **required}
    graded = regrade(row, (folder / "test_output.txt").read_bytes().decode())[name]
    assert graded["tests_status"] == tests
    assert (graded["resolved"], graded["patch_exists"]) == (published["resolved"], published["patch_exists"])


@pytest.mark.parametrize(
    ("new", "old", "resolved"),
    [
        ("PASSED", "PASSED", True),
        ("XFAIL", "PASSED", True),
        ("SKIPPED", "PASSED", False),  # a skipped test resolves nothing
        ("PASSED", "SKIPPED", True),  # but is no regression
        ("PASSED", "FAILED", False),
        ("ERROR", "PASSED", False),
        (None, "PASSED", False),
        ("PASSED", None, False),
    ],
)
def test_statuses_count_as_published(new: str | None, old: str | None, resolved: bool) -> None:
    lines = [f"{status} t.py::{test}" for status, test in ((new, "test_new"), (old, "test_old")) if status]
    assert report(log(*lines))["resolved"] is resolved


BOTH = ("PASSED t.py::test_new", "PASSED t.py::test_old")
QUIET = "12 specs, 0 failures"
FIRST_FAILED = "FAILED t.py::test_new - assert 0"


@pytest.mark.parametrize(
    ("text", "fields", "applied", "resolved"),
    [
        ("\n".join(BOTH), {}, False, False),
        (">>>>> Tests Timed Out\n" + log(*BOTH), {}, False, False),
        (log(*BOTH, exit_code=1), {}, False, False),
        (log(*BOTH, "FAILED t.py::test_other - no", exit_code=1), {}, True, True),
        (log(FIRST_FAILED, BOTH[1]) + log(*BOTH), {}, True, False),
        ("\n".join(BOTH) + "\n" + log(), {}, True, True),
        (log(QUIET), {}, True, False),
        (log(QUIET), {"eval_type": "fail_only"}, True, True),
        (log("nothing ran"), {"eval_type": "fail_only"}, False, False),
    ],
    ids=[
        "no markers", "a bad code", "an exit code that contradicts", "an exit code that does not",
        "the first markers count", "an empty slice", "no names", "failures alone count", "nothing ran",
    ],
)  # fmt: skip
def test_markers_exit_codes_and_names_in_a_log_decide_the_report(
    text: str, fields: dict[str, str], applied: bool, resolved: bool
) -> None:
    graded = report(text, **fields)
    assert (graded["patch_successfully_applied"], graded["resolved"]) == (applied, resolved)


def test_truncated_names_match_by_prefix_if_all_candidates_agree() -> None:
    lines = ("PASSED t.py::test_x[log(photon cm)]", "PASSED t.py::test_x[log(photon s)]", BOTH[1])
    truncated = {"FAIL_TO_PASS": ["t.py::test_x[log(photon"]}
    assert report(log(*lines), log_parser="parse_log_pytest_v2", **truncated)["resolved"]
    split = (lines[0], lines[1].replace("PASSED", "FAILED"), BOTH[1])
    assert not report(log(*split), log_parser="parse_log_pytest_v2", **truncated)["resolved"]


def test_lists_of_tests_may_be_json_or_python_text_under_lower_case_keys() -> None:
    lower = {"fail_to_pass": "['t.py::test_new']", "pass_to_pass": '["t.py::test_old"]'}
    wanted = {key: value for key, value in row().items() if not key.isupper()}
    assert regrade({**wanted, **lower}, log(*BOTH))["a__b-1"]["resolved"]


@pytest.mark.parametrize(
    ("change", "resolved"),
    [
        ({"install_config": {"log_parser": "parse_log_pytest"}}, True),
        ({"install_config": '{"log_parser": "parse_log_pytest"}'}, True),
        ({"repo": "pallets/flask", "version": "2.3"}, True),
        ({"repo": "swesmith/pallets__flask.bc098406"}, False),  # its parser expects statuses after names
    ],
)
def test_the_parser_may_be_derived_from_the_rest_of_the_row(change: dict[str, Any], resolved: bool) -> None:
    assert report(log(*BOTH), log_parser=None, **change)["resolved"] is resolved


def test_fail_only_evaluation_is_derived_from_the_repository() -> None:
    quiet = log("12 specs, 0 failures")
    assert report(quiet, repo="markedjs/marked", log_parser="parse_log_marked")["resolved"]


def test_windows_newlines_end_lines() -> None:
    assert report(log(*BOTH).replace("\n", "\r\n"))["resolved"]


def test_a_missing_patch_is_distinguished_from_a_failed_patch() -> None:
    graded = report(log(*BOTH), model_patch=None)
    assert (graded["patch_is_None"], graded["patch_exists"], graded["resolved"]) == (True, False, False)


def test_infrastructure_failures_in_a_log_are_named_without_effect() -> None:
    graded = report(log("Could not resolve host: index.example"))
    assert (graded["resolved"], graded["infra_failure"]) == (False, True)
    assert graded["infra_failure_reason"] == "network_unreachable"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"log_parser": "parse_log_pitest"}, "no log parser 'parse_log_pitest'; close ones: parse_log_"),
        ({"log_parser": ""}, "no 'log_parser'"),
        ({"FAIL_TO_PASS": "what"}, "'FAIL_TO_PASS' is text, but neither"),
        ({"PASS_TO_PASS": [1]}, "'PASS_TO_PASS' is not a list of test names"),
        ({"eval_type": "sometimes"}, "'eval_type' is 'sometimes'"),
        ({"log_parser": "parse_log_jekyll"}, "'parse_log_jekyll' fails on .*Unknown instance"),
    ],
)
def test_malformed_rows_are_refused_with_the_reason(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        regrade(row(**change), log(*BOTH))


def test_the_command_line_prints_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "row.json").write_text(json.dumps(row()), encoding="utf-8-sig")
    (tmp_path / "log").write_bytes(b"\xff\n" + log(*BOTH).encode())
    command = ["log", "--row", str(tmp_path / "row.json"), "--log"]
    assert grading_command([*command, str(tmp_path / "log")]) == 0
    assert json.loads(capsys.readouterr().out)["a__b-1"]["resolved"]
    assert grading_command([*command, str(tmp_path / "none")]) == 2
    out, err = capsys.readouterr()
    assert (out, "cannot read" in err) == ("", True)


@pytest.mark.parametrize("limit", ["processor time", "memory"])
def test_the_command_line_reads_a_hostile_log_within_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], limit: str
) -> None:
    if limit == "processor time":
        monkeypatch.setattr(isolation, "LOG_LIMITS", replace(isolation.LOG_LIMITS, cpu_s=1.0))
    (tmp_path / "row.json").write_text(json.dumps(row(log_parser="parse_log_sympy")))
    with (tmp_path / "log").open("w") as file:
        if limit == "memory":
            file.truncate(5 << 30)  # sparse
        else:
            file.write(log("cp " * 100_000))
    command = ["log", "--row", str(tmp_path / "row.json"), "--log", str(tmp_path / "log")]
    assert grading_command(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert ("more than 1 s of processor time" if limit == "processor time" else "MemoryError") in err


def test_log_parsing_imports_no_container_or_cloud_client() -> None:
    code = (
        "import sys; from engine.grading.logs.parsers import parse_log; parse_log('parse_log_pytest', '');"
        "print(sorted({'docker', 'modal', 'datasets', 'pandas', 'dotenv'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


TWO = (
    '{"instance_id": "a", "model_patch": "x"}',
    '{"instance_id": "b", "model_name_or_path": "m", "model_patch": null}',
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.jsonl", f"{TWO[0]}\n\n{TWO[1]}\n"),
        ("p.json", f"[{TWO[0]}, {TWO[1]}]"),
        ("p.json", f'{{"a": {TWO[0]}, "b": {TWO[1]}}}'),
    ],
)
def test_predictions_are_read_from_each_format_and_written(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    file = read_predictions(tmp_path / name)
    assert file == PredictionFile(
        predictions=(
            Prediction(instance_id="a", model_name_or_path="None", model_patch="x"),
            Prediction(instance_id="b", model_name_or_path="m", model_patch=None),
        )
    )
    (tmp_path / "again.jsonl").write_text("".join(prediction.line() for prediction in file.predictions))
    assert read_predictions(tmp_path / "again.jsonl") == file


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.txt", "", "are .jsonl or .json"),
        ("p.json", "3", "neither a list of rows nor columns"),
        ("p.json", "{", "is not JSON"),
        ("p.jsonl", "", "holds no predictions"),
        ("p.jsonl", '{"model_patch": ""}', "line 1, field 'instance_id': missing"),
        (
            "p.jsonl",
            '{"instance_id": "a"}',
            "line 1, field 'model_patch': missing; .* found only instance_id",
        ),
        ("p.jsonl", '{"instance_id": "a", "model_patch": 3}', "field 'model_patch': the patch is not text"),
        ("p.jsonl", '{"org": "a", "repo": "b", "number": "x", "fix_patch": ""}', "'number': not a number"),
    ],
)
def test_malformed_predictions_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DatasetError, match=message):
        read_predictions(tmp_path / name)


def test_a_malformed_prediction_is_rejected_alone_with_its_reason(tmp_path: Path) -> None:
    lines = [
        TWO[0], "{broken", '{"instance_id": "a", "model_patch": "again"}', "",
        '{"instance_id": "other", "model_patch": "x"}', '{"instance_id": "b", "model_patch": "\\ud800"}',
        '{"instance_id": "b", "model_patch": "latin \\udce9"}', "[1]",
    ]  # fmt: skip
    (tmp_path / "p.jsonl").write_bytes("\n".join(lines).encode() + b'\n{"instance_id": "\xff"}')
    file = read_predictions(tmp_path / "p.jsonl", known={"a", "b"})
    assert [(prediction.instance_id, prediction.model_patch) for prediction in file.predictions] == [
        ("a", "again"),
        ("b", "latin \udce9"),
    ]
    assert [reason.split(": ")[0] for reason in file.rejected] == [
        "line 2", "line 1", "line 5", "line 6, field 'model_patch'", "line 8", "line 9",
    ]  # fmt: skip
    assert file.rejected[1] == "line 1: the file predicts 'a' again, the last one counts"
    with pytest.raises(DatasetError, match="not in the dataset: a"):
        read_predictions(tmp_path / "p.jsonl", known={"c"})


FORMS = Path(__file__).parent / "predictions"
ONE = "toy__numbers-one"
MISSING = f"{ONE}: the instance is not in the dataset"
READ: dict[str, tuple[tuple[tuple[str, bool], ...], str, str]] = {
    "binary_stub.jsonl": (
        tuple((f"toy__numbers-{n}", True) for n in ("one", "two", "three", "four")), "m", "",
    ),
    "bom.jsonl": (((ONE, True),), "m", ""),
    "mini_preds.json": (((ONE, True),), "m", ""),
    "null_model.jsonl": (((ONE, True),), "None", ""),
    "pro_patch_key.json": (((ONE, True),), "my-model", ""),
    "same_run_id.jsonl": (((ONE, True),), "m", ""),
    "single_object.json": (((ONE, True),), "m", ""),
    "twice_last_right.jsonl": (
        ((ONE, True),), "m", "line 1: the file predicts 'toy__numbers-one' again",
    ),
    "twice_same.jsonl": (
        ((ONE, True),), "m", "line 1: the file predicts 'toy__numbers-one' again",
    ),
    "whitespace_patch.jsonl": (((ONE, False),), "m", ""),
}  # fmt: skip
"""File → instances, each with whether it has a patch; model of the first; reason to reject another."""
REFUSED = {
    "dict_of_texts.json": "contains neither a list of rows nor columns",
    "dict_without_id.json": "field 'instance_id': missing",
    "empty.jsonl": "holds no predictions",
    "id_spaces.jsonl": "the instance is not in the dataset: ' toy__numbers-one\\n'",
    "key_typo.jsonl": "line 1, field 'model_patch': missing; expected the patch in this field, found only ",
    "list_in_jsonl.jsonl": "line 1: not an object",
    "pretty_jsonl.jsonl": "line 1: not JSON",
    "single.pred": "predictions are .jsonl or .json files",
}


def test_every_sample_of_predictions_has_an_expected_outcome() -> None:
    assert {path.name for path in FORMS.iterdir() if path.suffix != ".md"} == {*READ, *REFUSED}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_samples_of_predictions_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(DatasetError) as raised:
        read_predictions(FORMS / name, known={ONE})
    assert REFUSED[name] in str(raised.value)


@pytest.mark.parametrize("name", READ)
def test_valid_samples_of_predictions_are_read(name: str) -> None:
    instances, model, said = READ[name]
    file = read_predictions(FORMS / name)
    assert [
        (entry.instance_id, bool((entry.model_patch or "").strip())) for entry in file.predictions
    ] == list(instances)
    assert [reason.startswith(said) for reason in file.rejected] == [True] * bool(said)
    assert file.predictions[0].model_name_or_path == model


MULTI_LOG = "\n".join(
    ["=== short test summary info ===", "PASSED a", "PASSED b", "FAILED c", "PASSED d", "SKIPPED e"]
)


def multi_swe_row() -> TaskRow:
    answer = TaskAnswer(
        gold_patch="", grade_rule=GradeRule.MULTI_SWE, log_parser="parse_log_pytest",
        metadata={"run_result": {"a": "PASS"}, "test_patch_result": {"a": "PASS", "b": "FAIL", "c": "FAIL"}},
    )  # fmt: skip
    return replace(make_row(), task=replace(make_row().task, repo="o/r", instance_id="o__r-7"), answer=answer)


@pytest.mark.parametrize("verdict", [Verdict.PASSED, Verdict.FAILED])
def test_multi_swe_instance_reports_list_tests_by_transition(verdict: Verdict) -> None:
    grade = Grade(verdict=verdict, reward=1.0, detail="why")
    result = multi_swe_reports.instance_report(multi_swe_row(), grade, MULTI_LOG)
    assert (result["org"], result["repo"], result["number"]) == ("o", "r", 7)
    assert (result["valid"], result["error_msg"]) == (
        (True, "") if verdict is Verdict.PASSED else (False, "why")
    )
    kinds = ("fixed_tests", "p2p_tests", "f2p_tests", "s2p_tests", "n2p_tests")
    assert [sorted(result[kind]) for kind in kinds] == [["b", "d"], ["a"], ["b"], [], ["d"]]
    assert result["f2p_tests"]["b"] == {"run": "NONE", "test": "FAIL", "fix": "PASS"}
    assert result["fix_patch_result"] == {
        "passed_count": 3, "failed_count": 1, "skipped_count": 1,
        "passed_tests": ["a", "b", "d"], "failed_tests": ["c"], "skipped_tests": ["e"],
    }  # fmt: skip


def test_the_final_multi_swe_report_counts_submitted_instances() -> None:
    rows = {name: replace(multi_swe_row(), task=replace(make_row().task, repo="o/r", instance_id=name))
            for name in ("o__r-1", "o__r-2", "o__r-3", "o__r-4")}  # fmt: skip
    ids = {
        "submitted": ["o__r-1", "o__r-2", "o__r-3"],
        "completed": ["o__r-1", "o__r-2"],
        "resolved": ["o__r-1"],
    }
    result = multi_swe_reports.final_report(rows, {**ids, "unresolved": ["o__r-2"], "error": ["o__r-3"]})
    assert (result["total_instances"], result["incomplete_instances"], result["error_instances"]) == (3, 1, 1)
    assert result["resolved_ids"] == ["o/r:pr-1"]
    assert result["error_ids"] == result["incomplete_ids"] == ["o/r:pr-3"]


@pytest.mark.parametrize(
    ("task", "answer", "patch", "setting"),
    [
        ({}, {"test_files": {"t.py": "other"}}, b"patch", ""),
        ({}, {"fail_to_pass": ("t.py::other",)}, b"patch", ""),
        ({"image": "other"}, {}, b"patch", ""),
        ({}, {}, b"other", ""),
        ({}, {}, b"patch", "grading.timeout_s=5"),
        ({}, {}, b"patch", "grading.counterfactual=off"),
        ({}, {}, b"patch", "sandbox.memory_mb=1024"),
        ({}, {}, b"patch", "sandbox.docker.network=bridge"),
    ],
)
def test_a_stored_report_is_reused_only_for_the_same_inputs(
    tmp_path: Path, task: dict[str, Any], answer: dict[str, Any], patch: bytes, setting: str
) -> None:
    """An edited row keeps its id; scheduling settings do not affect verdicts."""
    row = make_row()
    other = replace(row, task=replace(row.task, **task), answer=replace(row.answer, **answer))
    inputs = predictions._inputs(row, b"patch", PredictionSettings())
    predictions._begin(tmp_path, b"patch", inputs)
    assert predictions._known(tmp_path, "a", inputs) is None, "no report yet"
    (tmp_path / "report.json").write_text('{"a": {"resolved": true}}')
    (tmp_path / "test_output.txt").write_text("log")
    waiting = PredictionSettings.of(["sandbox.max_live=3", "grading.max_parallel=7"])
    same = predictions._inputs(row, b"patch", waiting)
    assert predictions._known(tmp_path, "a", same) == ({"resolved": True}, "log")
    changed = predictions._inputs(other, patch, PredictionSettings.of([setting] if setting else []))
    assert predictions._known(tmp_path, "a", changed) is None
    predictions._begin(tmp_path, patch, changed)
    assert predictions._known(tmp_path, "a", changed) is None, "the report of before is gone"


def test_a_stored_report_of_an_earlier_grader_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    before = predictions._inputs(make_row(), b"patch", PredictionSettings())
    monkeypatch.setattr("engine.grading.official.predictions.GRADER_VERSION", GRADER_VERSION + 1)
    assert predictions._inputs(make_row(), b"patch", PredictionSettings()) != before


def test_the_run_report_equals_that_of_the_harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare with swebench's ``make_run_report`` over the same per-instance files."""
    reporting = pytest.importorskip("swebench.harness.reporting")
    names = ["solved", "wrong", "empty", "gone", "crashed", "offline"]
    predictions = {
        name: Prediction(instance_id=name, model_name_or_path="m", model_patch="" if name == "empty" else "x")
        for name in names
        if name != "gone"
    }
    ends: dict[str, tuple[dict[str, Any] | None, str]] = {
        "solved": ({"resolved": True}, ""),
        "wrong": ({"resolved": False}, "no tests ran"),
        "crashed": (None, "Timeout error: 9 seconds exceeded"),
        "offline": ({"resolved": False}, "Could not resolve host"),
    }
    results = {
        name: InstanceResult(instance_id=name, report=end[0], failure=classify_failure(end[1]))
        for name, end in ends.items()
    }
    monkeypatch.chdir(tmp_path)
    for name, result in results.items():
        folder = tmp_path / "logs" / "run_evaluation" / "r" / "m" / name
        folder.mkdir(parents=True)
        (folder / "test_output.txt").write_text(ends[name][1])
        if result.report is not None:
            (folder / "report.json").write_text(json.dumps({name: result.report}))
    harness_input = {
        name: {"instance_id": name, "model_name_or_path": "m", "model_patch": prediction.model_patch}
        for name, prediction in predictions.items()
    }
    path = reporting.make_run_report(harness_input, [{"instance_id": name} for name in names], "r")
    assert run_report(names, predictions, results) == json.loads(path.read_text())
