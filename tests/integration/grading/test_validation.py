"""Validation of dataset rows in real sandboxes: statuses, retries, pauses and stops."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from engine.config.policies import OraclePolicyConfig
from engine.config.recipes import resolve
from engine.config.rollout import DatasetConfig, GradingConfig
from engine.config.run import ValidateRun
from engine.config.sandbox import SandboxConfig
from engine.config.validation import ValidatedDatasetConfig, ValidationConfig
from engine.datasets.store import dataset_path, load_dataset, save_dataset, with_content_id
from engine.errors import ConfigError, DatasetError, SandboxStartError
from engine.events.delivery.spool import SpoolSink
from engine.events.health import MutantCoverage, ProofRecord, RowStatus, ValidationRecord, append, read
from engine.events.types import RunStarted
from engine.grading.counterfactual.store import FileReferences
from engine.orchestrator import execute, perform
from engine.orchestrator.context import RunContext, RunResult
from engine.orchestrator.tasks.selection import run_rows
from engine.orchestrator.validate import Validation
from engine.sandbox.base import Sandbox, SandboxSpec
from engine.sandbox.local.backend import LocalBackend
from engine.testing.testrun import driver_command
from engine.types import GradeRule, TaskRow
from tests.builders.dataset_builders import new_file, patched
from tests.builders.sandbox_builders import CountingBackend
from tests.builders.verifier_builders import roll_out
from tests.integration import toy_yard
from tests.integration.adversary.frame import under
from tests.integration.toy_yard import events, open_context

COINS = """import random
import pytest


@pytest.mark.parametrize("number", range(24))
def test_coin(number):
    assert random.random() < 0.5
"""


SOLUTION = """#!/bin/bash
sed -i 's/if value < high/if value > high/' toy/numbers.py
"""


def variant(row: TaskRow, name: str, *, image: str = "", split: str = "train", **answer: Any) -> TaskRow:
    task = replace(row.task, instance_id=name, image=image or row.task.image)
    return with_content_id(TaskRow(task=task, answer=replace(row.answer, **answer), split=split))


def quick(row: TaskRow, name: str, **fields: Any) -> TaskRow:
    """Return a row whose test is a single command, without pytest."""
    command: dict[str, Any] = {
        "test_command": "grep -q 'value > high' toy/numbers.py",
        "grade_rule": GradeRule.EXIT_CODE,
    }
    return variant(row, name, **{**command, "fail_to_pass": (), "pass_to_pass": (), **fields})


def make_rows(row: TaskRow) -> list[TaskRow]:
    """Return one row of each kind, named after its expected status."""
    coins = tuple(f"tests/test_coins.py::test_coin[{number}]" for number in range(24))
    return [
        variant(row, "valid"),
        quick(row, "noop_passes", test_command="true"),
        variant(row, "gold_fails", gold_patch=patched("value = 1\n")),
        quick(row, "gold_fails-apply", gold_patch=new_file("a.py", "1\n").replace("+1\n", "-1\n")),
        quick(row, "gold_fails-none", gold_patch=""),
        variant(row, "gold_fails-untestable", fail_to_pass=()),
        quick(row, "gold_fails-ungradable", metadata={"ungradable": "no parser for it"}),
        quick(row, "gold_fails-script", gold_patch="", metadata={"solution": "echo no >&2; exit 3"}),
        quick(row, "valid-script", gold_patch="", metadata={"solution": SOLUTION}),
        variant(
            row, "flaky", fail_to_pass=coins, test_files={"tests/test_coins.py": COINS},
            test_command=driver_command(["tests/test_coins.py"], ["."]),
        ),
        quick(row, "infra", image="local:nowhere", split="heldout"),
    ]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def rows(home: Path, row: TaskRow) -> None:
    """Store the rows as a dataset."""
    save_dataset(home, "rows", make_rows(row), {})


@dataclass(frozen=True)
class Validated:
    """Validated dataset with its outcome and events."""

    name: str
    outcome: RunResult
    events: list[dict[str, Any]]


@pytest.fixture(scope="module")
def validated(home: Path) -> Validated:
    save_dataset(home, "validated", load_dataset(home, "rows").rows, {})
    settings = config("validated")
    with open_context(home, "validated", settings) as run:
        outcome = asyncio.run(perform(settings, run))
    return Validated(name="validated", outcome=outcome, events=events(run.run_dir))


def config(name: str, *, splits: Sequence[str] = (), parallel: int = 2, **settings: Any) -> ValidateRun:
    return ValidateRun(
        name="validation",
        dataset=ValidatedDatasetConfig(name=name, splits=tuple(splits)),
        validation=ValidationConfig(**{"repeats": 2, "retry_wait_s": 0.01, **settings}),
        grading=GradingConfig(timeout_s=30.0, reuse_verdicts=False, max_parallel=parallel),
        sandbox=SandboxConfig(memory_mb=256, max_live=4, start_retries=0),
    )


def by_name(home: Path, name: str) -> dict[str, ValidationRecord]:
    names = {row.task.id: row.task.instance_id for row in load_dataset(home, name).rows}
    records = read(dataset_path(home, name))
    return {names[record.task_id]: record for record in records if isinstance(record, ValidationRecord)}


async def test_validation_assigns_each_kind_of_row_its_status(home: Path, validated: Validated) -> None:
    dataset = validated.name
    reported = [event["record"] for event in validated.events if event["type"] == "task_validated"]
    progress = [event for event in validated.events if event["type"] == "run_progress"]
    assert validated.outcome.summary | {"seconds": 0} == {
        "dataset": dataset, "rows": 11, "valid": 2, "noop_passes": 1, "gold_fails": 6, "flaky": 1, "infra": 1,
        "quarantined": 8, "tests_value": 2, "tests_changed": 0, "tests_added": 0, "tests_without_mutant": 0,
        "strength_unmeasured": 0, "wrong_patches": 0, "wrong_patches_rejected": 0, "seconds": 0,
    }  # fmt: skip
    records = by_name(home, dataset)
    assert {name: record.status for name, record in records.items()} == {
        name: RowStatus(name.partition("-")[0]) for name in records
    }
    assert len(records["valid"].noop.seconds) == len(records["valid"].gold.seconds) == 2
    assert min(records["valid"].gold.seconds) > 0
    coverage = {name: record.coverage for name, record in records.items() if record.coverage}
    assert set(coverage) == {"valid", "valid-script"}
    assert coverage["valid"] == MutantCoverage(value=2, changed=0, added=0, none=0, variants=3)
    assert (coverage["valid-script"].variants, bool(coverage["valid-script"].note)) == (0, True)
    rows = {row.task.instance_id: row for row in load_dataset(home, dataset).rows}
    references = FileReferences(dataset_path(home, dataset))
    stored = {name for name, row in rows.items() if await references.load(row) is not None}
    assert stored == {"valid", "valid-script"}
    assert "test_clamp" in records["gold_fails"].reason
    assert "does not apply" in records["gold_fails-apply"].reason
    assert records["gold_fails-none"].reason.endswith("the row has no gold patch")
    assert "no required tests" in records["gold_fails-untestable"].reason
    assert records["gold_fails-ungradable"].reason.endswith("it cannot be graded: no parser for it")
    assert records["gold_fails-script"].reason.endswith("the solution script ended with 3: no")
    assert records["flaky"].num_flaky_tests == len(records["flaky"].flaky_tests) > 0
    assert all(test.startswith("tests/test_coins.py::") for test in records["flaky"].flaky_tests)
    assert "nowhere" in records["infra"].reason
    assert {record["task_id"] for record in reported} == {record.task_id for record in records.values()}
    assert (progress[-1]["done"], progress[-1]["total"]) == (11, 11)


class Unlucky(LocalBackend):
    """Backend whose every other sandbox fails to start; it counts open sandboxes."""

    opened = live = most = 0

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        self.opened += 1
        if self.opened % 2:
            raise SandboxStartError("no luck")
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            async with super().open(spec) as box:
                yield box
        finally:
            self.live -= 1


async def test_lost_gradings_are_retried_within_the_parallel_limit(home: Path) -> None:
    save_quick_rows(home, "unlucky", 4)
    settings = config("unlucky", repeats=1, parallel=2)
    backend = Unlucky(home)
    with open_context(home, "unlucky", settings) as run:
        validation = Validation(settings, run)
        await validation.work(backend)
        outcome = validation.outcome(0.0)
    assert (outcome.state, outcome.summary["valid"], outcome.summary["infra"]) == ("succeeded", 4, 0)
    assert backend.opened >= 16
    assert (backend.most, backend.live) == (2, 0)


async def test_last_gold_repeat_is_the_original_run_of_the_proof(home: Path, row: TaskRow) -> None:
    row = under(row, "log")
    name = "counted"
    save_dataset(home, name, [with_content_id(row)], {})
    settings = config(name)
    backend = CountingBackend(home)
    with open_context(home, name, settings) as run:
        validation = Validation(settings, run)
        await validation.work(backend)
    proof, record = read(dataset_path(home, name))
    assert isinstance(record, ValidationRecord)
    assert isinstance(proof, ProofRecord)
    assert proof.coverage == record.coverage
    assert (record.status, len(record.gold.verdicts)) == (RowStatus.VALID, 2)
    assert record.coverage is not None
    assert record.coverage.variants == 3
    assert backend.opened == 2 + 2 + 3, "no changes, gold patch, variants"


async def test_unstartable_sandboxes_fail_the_run_and_quarantine_no_rows(home: Path) -> None:
    settings = config("rows", splits=["heldout"], infra_retries=1)
    with open_context(home, "lost", settings) as run:
        outcome = await perform(settings, run)
        alerts = [event for event in events(run.run_dir) if event["type"] == "alert"]
    assert outcome.state == "failed"
    assert outcome.reason.startswith("no row could be tested")
    assert (outcome.summary["infra"], outcome.summary["quarantined"]) == (1, 0)
    assert "validation_infrastructure" in {alert["code"] for alert in alerts}


def test_runs_exclude_quarantined_rows_and_report_their_number(home: Path, validated: Validated) -> None:
    dataset = "chosen"
    shutil.copytree(dataset_path(home, validated.name), dataset_path(home, dataset))
    sampling = toy_yard.sampling(OraclePolicyConfig())
    sampling = sampling.model_copy(update={"dataset": DatasetConfig(name=dataset)})
    with open_context(home, f"{dataset}-r", sampling) as run:
        chosen = run_rows(sampling, run)
        [event] = [event for event in events(run.run_dir) if event["type"] == "tasks_selected"]
        # Later validation records must not change the tasks of a started run.
        wrong = [
            by_name(home, dataset)[key].model_copy(update={"status": RowStatus.GOLD_FAILS, "id": f"x/{key}"})
            for key in ("valid", "valid-script")
        ]
        append(dataset_path(home, dataset), wrong)
        assert run_rows(sampling, run) == chosen
    assert {row.task.instance_id for row in chosen} == {"valid", "valid-script"}
    assert (event["num_tasks"], event["num_quarantined"]) == (10, 8)
    with open_context(home, f"{dataset}-n", sampling) as run, pytest.raises(DatasetError, match="is left"):
        run_rows(sampling, run)


async def test_rows_setting_selects_unvalidated_or_suspect_rows(home: Path, row: TaskRow) -> None:
    rows = [quick(row, "valid"), quick(row, "noop", test_command="true"), quick(row, "no fix", gold_patch="")]
    rows.append(quick(row, "infra", image="local:nowhere", split="heldout"))
    save_dataset(home, "known", rows, {})
    for name, settings, summary in (
        ("first", {"splits": ["heldout"]}, {"rows": 1, "infra": 1}),
        ("rest", {"rows": "unvalidated"}, {"rows": 3, "infra": 0, "valid": 1}),
        ("suspect", {"rows": "suspect"}, {"rows": 3, "infra": 1, "valid": 0}),
    ):
        run_config = config("known", repeats=1, infra_retries=0, **settings)
        with open_context(home, f"known-{name}", run_config) as run:
            outcome = await perform(run_config, run)
        assert {key: outcome.summary[key] for key in summary} == summary


def save_quick_rows(home: Path, name: str, count: int) -> list[TaskRow]:
    row = load_dataset(home, "rows").rows[0]
    rows = [quick(row, f"row-{number}") for number in range(count)]
    save_dataset(home, name, rows, {})
    return rows


async def test_validation_pauses_between_rows_and_stops_at_once(home: Path) -> None:
    save_quick_rows(home, "paused", 400)  # more than are validated before the stop
    settings = config("paused", repeats=1)
    with open_context(home, "paused", settings) as run:
        run.control.set_desired("pause")
        work = asyncio.create_task(asyncio.to_thread(execute, settings, run))
        await _until(lambda: _has_event(run, "run_paused"))
        assert read(dataset_path(home, "paused")) == []
        run.control.set_desired("run")
        await _until(lambda: len(read(dataset_path(home, "paused"))) > 0)
        run.control.stop("enough")
        assert await work == 0
        last = events(run.run_dir)[-1]
    assert (last["state"], last["reason"]) == ("stopped", "enough")
    assert len(read(dataset_path(home, "paused"))) < 400


def _has_event(run: RunContext, kind: str) -> bool:
    return any(event["type"] == kind for event in events(run.run_dir))


async def _until(condition: Any) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        await asyncio.sleep(0.05)


def test_validation_refuses_tasks_without_tests(home: Path) -> None:
    settings = config("lakes")
    row = load_dataset(home, "rows").rows[0]
    save_dataset(home, "lakes", [variant(row, "lake", grade_rule="goal")], {})
    with open_context(home, "lakes", settings) as run:
        assert execute(settings, run) == 1
        reason = json.loads((run.run_dir / "failure.json").read_text())["reason"]
    assert reason == "'lakes' is judged by its environment: there are no tests to validate"


def test_weaker_tests_reject_fewer_wrong_patches(home: Path, row: TaskRow) -> None:
    rows = [
        variant(row, "strong"),
        variant(row, "weak", fail_to_pass=row.answer.fail_to_pass[:1], pass_to_pass=()),
        quick(row, "one-line"),
        quick(row, "noop_passes", test_command="true"),
    ]
    save_dataset(home, "strength", rows, {})
    settings = config("strength", repeats=1, wrong_patches=24)
    with open_context(home, "strength", settings) as run:
        outcome = asyncio.run(perform(settings, run))
    records = by_name(home, "strength")
    strong, weak, line = (records[name].strength for name in ("strong", "weak", "one-line"))
    assert strong is not None
    assert weak is not None
    assert line is not None
    assert strong.graded == weak.graded > 3
    assert strong.rejected > weak.rejected
    assert len(weak.passed) == weak.graded - weak.rejected
    assert any("toy/numbers.py:" in detail for detail in weak.passed)
    assert records["noop_passes"].strength is None
    graded = sum(found.graded for found in (strong, weak, line))
    assert outcome.summary["strength_unmeasured"] == 0
    assert (outcome.summary["wrong_patches"], outcome.summary["wrong_patches_rejected"]) == (
        graded,
        sum(found.rejected for found in (strong, weak, line)),
    )
    reported = [event["record"] for event in events(run.run_dir) if event["type"] == "task_validated"]
    assert all(not record["strength"]["passed"] for record in reported if record["strength"])


def test_patches_of_failed_rollouts_are_wrong_patches(home: Path, row: TaskRow) -> None:
    strong = quick(row, "rolled")
    other_tree = with_content_id(replace(strong, task=replace(strong.task, base_commit="2")))
    save_dataset(home, "rolled", [strong], {})
    save_dataset(home, "rolled-earlier", [other_tree], {})
    run_dir = home / "runs" / "failed-rollouts"
    run_dir.mkdir(parents=True)
    sections = {"dataset": {"name": "rolled"}, "evaluation": {"dataset": "rolled-earlier"}}
    (run_dir / "config.json").write_text(json.dumps({"seed": 0, **sections}))
    wrong = patched("value = 1\n")
    with closing(SpoolSink(run_dir, epoch=1)) as sink:
        sink.emit(RunStarted, host="h", pid=1)
        for index, verdict in enumerate(("failed", "failed", "tampered", "passed", "test_timeout")):
            patch = wrong if verdict == "failed" else f"{verdict}\n"
            roll_out(sink, strong.task.id, index, passed=verdict == "passed", patch=patch, verdict=verdict)
        roll_out(sink, strong.task.id, 5, passed=False, patch="does not apply\n")
        roll_out(sink, strong.task.id, 6, passed=False, patch="")
        roll_out(sink, other_tree.task.id, 0, passed=False, patch=patched("value = 2\n"))
    settings = config("rolled", repeats=1, wrong_patches=4, wrong_patches_of=("failed-rollouts",))
    with open_context(home, "rolled", settings) as run:
        asyncio.run(perform(settings, run))
    strength = by_name(home, "rolled")["rolled"].strength
    assert strength is not None
    counts = {kind: (found.graded, found.rejected) for kind, found in strength.kinds.items()}
    assert counts.pop("rollout") == (1, 1), "of seven: one that its tests rejected, and that applies"
    assert sum(graded for graded, _ in counts.values()) == 2
    unknown = config("rolled", wrong_patches=2, wrong_patches_of=("nowhere",))
    with open_context(home, "rolled-u", unknown) as run, pytest.raises(ConfigError, match="nowhere"):
        asyncio.run(perform(unknown, run))
    with pytest.raises(ConfigError, match=r"no effect without validation\.wrong_patches"):
        resolve("validate-dataset", {"dataset.name": "d", "validation.wrong_patches_of": ["7"]})
