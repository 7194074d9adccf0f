"""Submission folders for SWE-bench/experiments, and their checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import yaml

from engine.evaluation.submission import SubmissionInfo, SubmittedInstance, submission_files
from engine.evaluation.submission_checks import check_submission
from engine.events.harness import instance_report
from engine.types import TestKind, TestOutcome, TestResult

FOLDER = "20261123_toy"
INFO = SubmissionInfo(
    name="Toy agent: 1",
    authors=("A. Author",),
    site="https://example.org",
    report="https://example.org/report",
    models=("toy-1",),
    organizations=("Toys",),
    open_model=True,
    confirmed=True,
)
Files = dict[str, bytes]


def instance(name: str, *, resolved: bool = True, patch: str = "+ x\n") -> SubmittedInstance:
    outcome = TestOutcome.PASSED if resolved else TestOutcome.FAILED
    tests = [
        TestResult(test_id="t::a", kind=TestKind.FAIL_TO_PASS, outcome=outcome),
        TestResult(test_id="t::b", kind=TestKind.PASS_TO_PASS, outcome=TestOutcome.XFAIL),
    ]
    return SubmittedInstance(
        instance_id=name, repo=name.partition("-")[0], patch=patch, resolved=resolved,
        report=instance_report(tests, resolved=resolved), test_output="1 passed", trajectory='{"steps": []}',
    )  # fmt: skip


INSTANCES = (
    instance("django__django-1"),
    instance("django__django-2", resolved=False),
    instance("flask-3", resolved=False, patch=""),
)


def folder(info: SubmissionInfo = INFO) -> Files:
    return dict(submission_files(info, INSTANCES))


def test_a_complete_submission_has_every_file_and_no_finding() -> None:
    files = folder()
    assert check_submission(FOLDER, files.items(), [entry.instance_id for entry in INSTANCES]) == []
    assert {path for path in files if path.startswith("logs/django__django-1/")} == {
        "logs/django__django-1/patch.diff",
        "logs/django__django-1/report.json",
        "logs/django__django-1/test_output.txt",
    }
    assert not any(path.startswith("logs/flask-3") for path in files), "an empty patch is not run"
    report = json.loads(files["logs/django__django-2/report.json"])["django__django-2"]
    assert report["resolved"] is False
    assert report["tests_status"]["FAIL_TO_PASS"] == {"success": [], "failure": ["t::a"]}
    assert report["tests_status"]["PASS_TO_PASS"] == {"success": ["t::b"], "failure": []}
    lines = [json.loads(line) for line in files["all_preds.jsonl"].splitlines()]
    assert [(line["instance_id"], line["model_patch"]) for line in lines] == [
        ("django__django-1", "+ x\n"),
        ("django__django-2", "+ x\n"),
        ("flask-3", ""),
    ]
    assert json.loads(files["results/results.json"]) == {
        "no_generation": ["flask-3"],
        "no_logs": [],
        "resolved": ["django__django-1"],
    }
    assert b"Resolved 1 of 3 instances (33.33%)" in files["README.md"]
    assert b"| django__django | 1 | 2 |" in files["README.md"]


def test_metadata_states_the_number_of_attempts() -> None:
    once = yaml.safe_load(folder()["metadata.yaml"])
    assert once["info"]["name"] == "Toy agent: 1"
    assert once["tags"]["system"]["attempts"] == "1"
    assert once["tags"]["os_model"] is True
    several = folder(replace(INFO, rule="ef"))
    assert yaml.safe_load(several["metadata.yaml"])["tags"]["system"]["attempts"] == "2+"
    assert b"Best@k submission" in several["README.md"]
    assert b"pass@1" not in several["README.md"]


def without(*paths: str) -> Callable[[Files], Files]:
    return lambda files: {path: content for path, content in files.items() if path not in paths}


def changed(path: str, old: bytes, new: bytes) -> Callable[[Files], Files]:
    return lambda files: {**files, path: files[path].replace(old, new)}


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (without("README.md"), "README.md is missing or empty"),
        (without("all_preds.jsonl"), "there is no prediction"),
        (without("trajs/flask-3.json"), "instances without a reasoning trace in trajs/: 1, such as flask-3"),
        (without("logs/django__django-1/patch.diff"), "django__django-1 has no patch.diff in logs/"),
        (
            without("logs/django__django-1/report.json"),
            "patches without a report.json, which count as unresolved: 1",
        ),
        (changed("logs/django__django-1/report.json", b"resolved", b"solved"), "does not say whether"),
        (
            changed("all_preds.jsonl", b"flask-3", b"django__django-1"),
            "predicts django__django-1 more than once",
        ),
        (
            changed("all_preds.jsonl", b'"model_patch": ""', b'"model_patch": ["+ x"]'),
            "line 3: not a prediction",
        ),
        (changed("all_preds.jsonl", b'"flask-3"', b"[" * 100_000), "line 3: not a prediction"),
        (changed("logs/django__django-1/report.json", b"{", b"[" * 100_000), "does not say whether"),
        (changed("metadata.yaml", b"Toys", b""), "tags.org"),
        (changed("metadata.yaml", b"https://example.org/report", b"soon"), "info.report is 'soon'"),
        (changed("metadata.yaml", b"info:", b"info: ["), "metadata.yaml is not YAML"),
        (changed("metadata.yaml", b"attempts: '1'", b"attempts: 16"), "tags.system.attempts"),
        (changed("README.md", b"- [x] Is a pass", b"- [ ] Is a pass"), "unconfirmed statements"),
    ],
)
def test_incomplete_submissions_have_findings(change: Callable[[Files], Files], finding: str) -> None:
    findings = check_submission(FOLDER, change(folder()).items())
    assert any(finding in text for text in findings), findings


def test_predictions_are_compared_with_the_instances_of_the_split() -> None:
    findings = check_submission("toy", folder().items(), ["django__django-1", "django__django-2", "sympy-9"])
    assert findings == [
        "the folder is called 'toy'; call it YYYYMMDD_NAME",
        "instances of the split without a prediction: 1, such as sympy-9",
        "predictions of no instance of the split: 1, such as flask-3",
    ]


def test_lost_instances_count_as_unresolved() -> None:
    split = {entry.instance_id: entry.repo for entry in INSTANCES} | {"django__django-9": "django__django"}
    files = dict(submission_files(INFO, INSTANCES, split))
    assert b"Resolved 1 of 4 instances (25.00%)" in files["README.md"]
    assert b"| django__django | 1 | 3 |" in files["README.md"]
    assert json.loads(files["results/resolved_by_repo.json"]) == {
        "django__django": {"resolved": 1, "total": 3},
        "flask": {"resolved": 0, "total": 1},
    }
    assert json.loads(files["results/results.json"])["no_generation"] == ["flask-3", "django__django-9"]
    assert json.loads(files["all_preds.jsonl"].splitlines()[-1]) == {
        "instance_id": "django__django-9",
        "model_name_or_path": "Toy agent: 1",
        "model_patch": "",
    }
    assert check_submission(FOLDER, files.items(), split) == [
        "instances without a reasoning trace in trajs/: 1, such as django__django-9"
    ]


def test_line_separators_inside_a_patch_do_not_end_a_line() -> None:
    line = {"instance_id": "flask-3", "model_name_or_path": "toy", "model_patch": "+ \u2028\x85x\n"}
    content = json.dumps(line, ensure_ascii=False).encode()
    findings = check_submission(FOLDER, [("all_preds.jsonl", content), ("trajs/flask-3.json", b"{}")])
    assert not any("not a prediction" in text or "more than once" in text for text in findings), findings
    assert "flask-3 has no patch.diff and no test_output.txt in logs/" in findings


def test_hostile_names_of_instances_stay_inside_the_folder() -> None:
    hostile = replace(INSTANCES[0], instance_id="../../etc/x")
    assert not [path for path, _ in submission_files(INFO, [hostile]) if ".." in path.split("/")]
