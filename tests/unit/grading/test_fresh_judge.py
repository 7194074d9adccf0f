"""Judging of logs in a fresh process, where every parser that a row may name is available."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from engine import isolation
from engine.config.rollout import GradingConfig
from engine.grading.evidence import Evidence, Judgement
from engine.grading.execution import judge
from engine.testing.markers import END, START
from engine.types import GradeRule, TaskAnswer
from tests.builders.rollout_builders import make_row

TEST = "test_a.py::test_x"
LOGS = {
    "swesmith_pytest": f"{TEST} PASSED [100%]\n",
    "swesmith_gotest": f"--- PASS: {TEST} (0.00s)\n",
    "r2e_pytest": f"=== short test summary info ===\nPASSED a/{TEST}\n",
    "swe_bench_pro": json.dumps({"tests": [{"name": TEST, "status": "PASSED"}]}) + "\n",
    "parse_log_pytest": f"PASSED {TEST}\n",
    "multi_swe:acme/toy": f"ok {TEST}\n",
}


@pytest.fixture(autouse=True)
def fresh_judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Judge every log in a new process."""
    with ThreadPoolExecutor(max_workers=1) as threads:
        monkeypatch.setattr(isolation, "_threads", lambda _limits: threads)
        yield


@pytest.fixture(autouse=True)
def multi_swe_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a fake package with one repository; only the judge imports it."""
    harness = tmp_path / "multi_swe_bench" / "harness"
    (harness / "repos").mkdir(parents=True)
    for name in (tmp_path / "multi_swe_bench", harness):
        (name / "__init__.py").write_text("")
    simple = "class {0}:\n    def __init__(self, **fields): vars(self).update(fields)\n"
    (harness / "pull_request.py").write_text(simple.format("Base") + simple.format("PullRequest"))
    (harness / "image.py").write_text(simple.format("Config"))
    (harness / "instance.py").write_text(
        "class Instance:\n    known = {}\n"
        "    @classmethod\n    def create(cls, request, _): return cls.known[request.org, request.repo]()\n"
        "    @classmethod\n    def register(cls, org, repo):\n"
        "        return lambda found: cls.known.setdefault((org, repo), found)\n"
    )
    (harness / "repos" / "toy.py").write_text(
        "import re\nfrom types import SimpleNamespace\n"
        "from multi_swe_bench.harness.instance import Instance\n"
        '@Instance.register("acme", "toy")\nclass Toy:\n    def parse_log(self, log):\n'
        "        passed = re.findall(r'^ok (.*)$', log, re.MULTILINE)\n"
        "        return SimpleNamespace(passed_tests=passed, failed_tests=[], skipped_tests=[])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


async def judged(rule: GradeRule, parser: str, log: str, **fields: object) -> Judgement:
    answer = TaskAnswer(gold_patch="", grade_rule=rule, log_parser=parser, fail_to_pass=(TEST,))
    text = f"{START}\n{log}{END}\n>>>>> Test Exit Code: 0\n"
    evidence = Evidence(log=text, judged=text, shown=log, exit_code=0)
    return await judge(replace(make_row(), answer=replace(answer, **fields)), evidence, GradingConfig())  # type: ignore[arg-type]


@pytest.mark.parametrize("parser", LOGS)
async def test_lists_of_tests_are_judged_with_every_parser(parser: str) -> None:
    test = "test_x" if parser == "r2e_pytest" else TEST
    grade = await judged(GradeRule.F2P_P2P, parser, LOGS[parser], fail_to_pass=(test,))
    assert (grade.passed, grade.detail) == (True, "")
    grade = await judged(GradeRule.F2P_P2P, parser, LOGS[parser], fail_to_pass=("other",))
    assert not grade.passed
    assert "cannot be read" not in grade.detail


async def test_maps_and_transitions_are_judged_in_a_fresh_process() -> None:
    grade = await judged(GradeRule.MAP_EQUAL, "r2e_pytest", LOGS["r2e_pytest"], expected={"test_x": "PASSED"})
    assert (grade.passed, grade.detail) == (True, "")
    metadata = {"n2p_tests": [TEST]}
    for parser in ("multi_swe:acme/toy", "swesmith_gotest"):
        grade = await judged(GradeRule.MULTI_SWE, parser, LOGS[parser], metadata=metadata)
        assert (grade.passed, grade.detail) == (True, "")
