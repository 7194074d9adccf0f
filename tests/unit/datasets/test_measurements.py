"""Stored measurements of curation: round trips, and files damaged by a killed process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config.sandbox import SandboxConfig
from engine.datasets.curation.baseline import Baseline
from engine.datasets.curation.candidates import Candidate, find_candidates
from engine.datasets.curation.measurements import FOLDER, Measurements, Trial
from engine.datasets.sources.fetch import Source

SOURCE = (
    "def clamp(value, low, high):\n    if value < low:\n        return low\n    return min(value, high)\n"
)


@pytest.fixture
def baseline(tmp_path: Path) -> Baseline:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "numbers.py").write_text(SOURCE)
    source = Source(
        spec="toy",
        name="toy",
        revision="1",
        tree=tree,
        packages=("toy",),
        roots=(".",),
        tests=("tests",),
        requirements=(),
    )
    return Baseline(
        source=source,
        image="toy-1",
        toolchain=tmp_path / "toolchain",
        seconds={"tests/t.py::low": 0.25, "tests/t.py::ünicode": 0.125},
        executed_by={"numbers.py": {2: ("tests/t.py::low", "tests/t.py::ünicode"), 3: ("tests/t.py::low",)}},
    )


@pytest.fixture
def candidates(baseline: Baseline) -> list[Candidate]:
    return find_candidates(baseline, max_function_lines=20)


def opened(home: Path) -> Measurements:
    return Measurements(home, "toy-1", stability_runs=2, sandbox=SandboxConfig())


def test_baseline_is_loaded_only_for_the_same_inputs(tmp_path: Path, baseline: Baseline) -> None:
    kept = opened(tmp_path)
    assert kept.baseline(baseline.source, baseline.toolchain) is None
    kept.keep_baseline(baseline)
    assert opened(tmp_path).baseline(baseline.source, baseline.toolchain) == baseline
    inputs: dict[str, Any] = {"image": "toy-1", "stability_runs": 2, "sandbox": SandboxConfig()}
    for other in (
        {"image": "toy-2"},
        {"stability_runs": 3},
        {"sandbox": SandboxConfig(memory_mb=1024)},
        {"sandbox": SandboxConfig(backend="docker")},
    ):
        assert (
            Measurements(tmp_path, **{**inputs, **other}).baseline(baseline.source, baseline.toolchain)
            is None
        )


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"seconds": {}, "executed_by": {"a.py": {"1": [0]}}}',
        '{"seconds": {"t": 1}, "executed_by": {"a.py": {"1": [-1]}}}',
        '{"seconds": ["t"], "executed_by": {}}',
    ],
)
def test_damaged_baseline_is_ignored(content: str, tmp_path: Path, baseline: Baseline) -> None:
    kept = opened(tmp_path)
    kept.keep_baseline(baseline)
    next((tmp_path / FOLDER).glob("*/baseline.json")).write_text(content)
    assert kept.baseline(baseline.source, baseline.toolchain) is None


def test_trials_are_stored_by_fault_and_tests(tmp_path: Path, candidates: list[Candidate]) -> None:
    first, second = candidates[:2]
    kept = opened(tmp_path)
    kept.keep_trial(first, Trial(("tests/t.py::low",), "AssertionError"))
    kept.keep_trial(second, Trial())
    for measurements in (kept, opened(tmp_path)):
        assert measurements.trial(first) == Trial(("tests/t.py::low",), "AssertionError")
        assert measurements.trial(second) == Trial()
        assert measurements.trial(replace(first, tests=("tests/t.py::low",))) is None
        assert measurements.trial(candidates[2]) is None
    assert next((tmp_path / FOLDER).glob("*/trials.jsonl")).stat().st_mode & 0o777 == 0o600


def test_truncated_line_loses_only_its_trial(tmp_path: Path, candidates: list[Candidate]) -> None:
    kept = opened(tmp_path)
    for candidate in candidates[:2]:
        kept.keep_trial(candidate, Trial())
    path = next((tmp_path / FOLDER).glob("*/trials.jsonl"))
    path.write_text(path.read_text()[:-20])
    again = opened(tmp_path)
    assert (again.trial(candidates[0]), again.trial(candidates[1])) == (Trial(), None)
    again.keep_trial(candidates[2], Trial(problem="unstable"))
    assert opened(tmp_path).trial(candidates[2]) == Trial(problem="unstable")


def test_trials_of_earlier_versions_are_read(tmp_path: Path, candidates: list[Candidate]) -> None:
    opened(tmp_path).keep_trial(candidates[0], Trial())
    path = next((tmp_path / FOLDER).glob("*/trials.jsonl"))
    key = json.loads(path.read_text())["key"]
    for fields, expected in (
        ({"failing": ["t"], "exception": "KeyError"}, Trial(("t",), "KeyError")),
        ({"failing": [], "exception": ""}, Trial(problem="earlier")),
        (
            {"failing": [], "exception": "", "problem": "unnoticed", "detail": "", "seconds": 2.5},
            Trial(problem="unnoticed", seconds=2.5),
        ),
    ):
        path.write_text(json.dumps({"key": key, **fields}) + "\n")
        assert opened(tmp_path).trial(candidates[0]) == expected
