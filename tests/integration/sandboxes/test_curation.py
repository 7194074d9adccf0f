"""Curation of a toy package and its tasks, in real sandboxes."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

from engine.config.curation import CurationConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets import funnel
from engine.datasets.curation import trials
from engine.datasets.curation.candidates import Candidate, CandidateQueue
from engine.datasets.curation.curate import curate
from engine.datasets.curation.handwritten import build_task
from engine.datasets.curation.measurements import FOLDER, Trial
from engine.datasets.curation.trials import Curation
from engine.datasets.sources.fetch import fetch_source
from engine.datasets.store import Dataset, load_dataset
from engine.errors import DatasetError, PreflightError
from engine.events.curation import CurationFunnel
from engine.sandbox.base import SandboxSpec
from engine.sandbox.local.backend import LocalBackend
from engine.types import TaskRow, Verdict
from tests.builders.dataset_builders import (
    NO_PLUGINS,
    make_grader,
    toolchain_or_skip,
    without_reuse,
    write_toy,
)

SANDBOX = SandboxConfig(memory_mb=256)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("curation")
    toolchain_or_skip(folder)
    return folder


def config(home: Path, **changes: object) -> CurationConfig:
    values: dict[str, object] = {
        "sources": (str(home / "toy"),), "output": "toy", "train_tasks": 2, "heldout_tasks": 1,
        "stability_runs": 2,
    }  # fmt: skip
    return CurationConfig.model_validate({**values, **changes})


Report = tuple[str, int, CurationFunnel | None]


async def run(home: Path, settings: CurationConfig) -> tuple[Dataset, list[Report]]:
    reports: list[Report] = []

    def report(message: str, done: int, _total: int, *, funnel: CurationFunnel | None = None) -> None:
        reports.append((message, done, funnel))

    dataset = await curate(settings, home=home, backend=LocalBackend(home), sandbox=SANDBOX, progress=report)
    counts = [done for _, done, _ in reports]
    assert counts == sorted(counts), "what is done stays done"
    return dataset, reports


@pytest.fixture(scope="module")
def tried() -> list[Candidate]:
    """Candidates that were tried for the dataset."""
    return []


@pytest.fixture(scope="module")
def dataset(home: Path, tried: list[Candidate]) -> Dataset:
    write_toy(home / "toy")
    take = CandidateQueue.take

    def record(queue: CandidateQueue, count: int) -> list[Candidate]:
        batch = take(queue, count)
        tried.extend(batch)
        return batch

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CandidateQueue, "take", record)
        return asyncio.run(run(home, config(home)))[0]


def test_curated_tasks_are_saved_and_splits_share_no_file(home: Path, dataset: Dataset) -> None:
    assert load_dataset(home, "toy").rows == dataset.rows
    assert (len(dataset.split("train")), len(dataset.split("heldout"))) == (2, 1)
    files = [{row.task.metadata["file"] for row in dataset.split(split)} for split in ("train", "heldout")]
    assert not files[0] & files[1]
    assert len({row.task.metadata["function"] for row in dataset.split("train")}) == 2


def test_every_fault_is_part_of_a_task_or_lost_for_its_reason(
    dataset: Dataset, tried: list[Candidate]
) -> None:
    funnel = CurationFunnel.model_validate(
        {name: dataset.provenance[name] for name in CurationFunnel.model_fields}
    )
    stages = {stage.stage: stage.reached for stage in funnel.funnel}
    lost = {reason: number for stage in funnel.funnel for reason, number in stage.lost.items()}
    assert (stages["tried"], stages["wanted"], funnel.tasks) == (len(tried), 3, 3)
    assert stages["faults"] == 3 + sum(lost.values())
    assert funnel.trial_seconds > 0
    assert funnel.disk_bytes > 0


def test_unusable_tests_are_never_required(dataset: Dataset) -> None:
    required = {test for row in dataset.rows for test in row.answer.fail_to_pass + row.answer.pass_to_pass}
    assert required
    assert not any("always_broken" in test or "slow" in test for test in required)


def test_statements_quote_the_faulty_line_without_revealing_the_fix(dataset: Dataset) -> None:
    for row in dataset.rows:
        fault = row.answer.metadata
        assert f"line {fault['line']}: `{fault['mutated'].strip()}`" in row.task.problem_statement
        assert f"Failing: {row.answer.fail_to_pass[0]}" in row.task.problem_statement
        assert fault["kind"] not in repr(row.task)
        assert fault["original"].strip() not in row.task.problem_statement


async def test_every_task_fails_unpatched_and_passes_with_its_gold_patch(
    home: Path, dataset: Dataset
) -> None:
    grader = make_grader(LocalBackend(home))

    async def verdicts(row: TaskRow) -> list[Verdict]:
        plain = without_reuse(row)
        return [(await grader.grade(plain, patch)).verdict for patch in ("", row.answer.gold_patch)]

    assert await asyncio.gather(*(verdicts(row) for row in dataset.rows)) == [
        [Verdict.FAILED, Verdict.PASSED]
    ] * len(dataset.rows)


async def test_image_contains_the_fault_once_and_runs_the_tests(home: Path, dataset: Dataset) -> None:
    row = dataset.rows[0]
    fault = row.answer.metadata
    async with LocalBackend(home).open(SandboxSpec(image=row.task.image)) as box:
        text = (await box.read_file(f"/testbed/{fault['path']}")).decode()
        assert text.count(fault["mutated"].strip()) == 1
        test = row.answer.fail_to_pass[0]
        command = f"python3 -m pytest -q {NO_PLUGINS} -c /dev/null --rootdir=. '{test}'"
        result = await box.exec(command, timeout_s=60)
        assert (result.exit_code, b"1 failed" in result.stdout) == (1, True)


async def test_same_inputs_reuse_the_dataset_and_changed_inputs_rebuild_it(
    home: Path, dataset: Dataset
) -> None:
    reused, reports = await run(home, config(home, workers=1))
    assert reused.rows == dataset.rows
    assert reports == [("dataset 'toy' is up to date", 3, None)]
    rebuilt, _ = await run(home, config(home, train_tasks=1, heldout_tasks=0, hint="function"))
    assert [row.split for row in rebuilt.rows] == ["train"]
    assert "line " not in rebuilt.rows[0].task.problem_statement.split("\n")[1]


async def test_repeated_curation_reuses_stored_trials_and_opens_no_sandbox(
    home: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> NoReturn:
        pytest.fail("a sandbox was opened")

    monkeypatch.setattr(LocalBackend, "open", refuse)
    repeated, reports = await run(home, config(home, output="again"))
    assert repeated.rows == dataset.rows
    for name in CurationFunnel.model_fields:
        assert repeated.provenance[name] == dataset.provenance[name]
    assert [funnel is not None for *_, funnel in reports] == [False] * (len(reports) - 1) + [True]
    assert not any("baseline" in message for message, *_ in reports)


@pytest.mark.parametrize("faults_per_task", [1, 2])
async def test_a_cancelled_curation_goes_on_with_the_numbers_it_had(
    home: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, faults_per_task: int
) -> None:
    """Cancel it twice: each attempt reports no less, and the last one ends as an unbroken one."""
    tree = write_toy(home / f"broken-off-{faults_per_task}")
    tried: list[Candidate] = []
    cancel_after: list[int] = []

    async def notice(curation: Curation, candidate: Candidate) -> Trial:
        if cancel_after == [len(tried)]:
            attempt.cancel()
        await asyncio.sleep(0.01)
        tried.append(candidate)
        is_noticed = len(candidate.fault.mutated) % 3 == 0
        return Trial(failing=candidate.tests) if is_noticed else Trial(problem="unnoticed")

    monkeypatch.setattr(trials, "_try", notice)
    monkeypatch.setattr(funnel, "_REPORT_EVERY_S", 0.0)
    settings = config(home, sources=(str(tree),), train_tasks=6, workers=1, faults_per_task=faults_per_task)
    states: list[CurationFunnel] = []

    def report(_message: str, _done: int, _total: int, *, funnel: CurationFunnel | None = None) -> None:
        states.extend([funnel] if funnel is not None else [])

    def attempt_of(output: str) -> asyncio.Task[Dataset]:
        changed = settings.model_copy(update={"output": output})
        backend = LocalBackend(home)
        return asyncio.create_task(
            curate(changed, home=home, backend=backend, sandbox=SANDBOX, progress=report)
        )

    for last in (3, 9):
        cancel_after[:] = [last]
        attempt = attempt_of("broken")
        with pytest.raises(asyncio.CancelledError):
            await attempt
    cancel_after.clear()
    broken = await attempt_of("broken")
    assert len(tried) == len({candidate.mutated for candidate in tried})
    assert [(item["item"], item["detail"]) for item in broken.provenance["examples"]["unnoticed"]] == [
        (f"{c.path}:{c.fault.line} {c.fault.function}",
         f"{c.fault.kind}: {c.fault.mutated.strip()}")
        for c in tried if len(c.fault.mutated) % 3
    ][:3]  # fmt: skip
    for name in ("tried", "mended", "combined", "wanted"):
        counts = [stage.reached for state in states for stage in state.funnel if stage.stage == name]
        assert counts == sorted(counts)
    [kept] = (home / FOLDER).glob(f"{tree.name}-*/trials.jsonl")
    kept.unlink()
    unbroken = await attempt_of("unbroken")
    assert unbroken.rows == broken.rows
    for name in {*CurationFunnel.model_fields} - {"trial_seconds"}:
        assert unbroken.provenance[name] == broken.provenance[name]


async def test_curation_without_usable_sources_reports_each_reason(home: Path, tmp_path: Path) -> None:
    write_toy(home / "toy")
    broken = write_toy(tmp_path / "broken")
    (broken / "toy/__init__.py").write_text("raise RuntimeError\n")
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "module.py").write_text("x = 1\n")
    with pytest.raises(DatasetError) as raised:
        await run(home, config(home, sources=(str(broken), str(bare), str(tmp_path / "nowhere"))))
    assert "is unusable: no tests were collected" in str(raised.value)
    assert "has no Python package" in str(raised.value)
    assert "is not a folder on this machine" in str(raised.value)


def test_folder_sources_exclude_git_data_and_symlinks(home: Path, tmp_path: Path) -> None:
    tree = write_toy(tmp_path / "repository")
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    (tree / "passwd").symlink_to("/etc/passwd")
    source = fetch_source(str(tree), home)
    assert source.packages == ("toy",)
    assert not (source.tree / ".git").exists()
    assert not os.path.lexists(source.tree / "passwd")


async def test_handwritten_task_fails_unpatched_and_passes_with_its_gold_patch(home: Path) -> None:
    try:
        row = build_task("wcmatch-45", home)
    except PreflightError as error:
        pytest.skip(str(error))
    assert row.split == "handwritten"
    assert "docs/" not in row.answer.gold_patch
    grader = make_grader(LocalBackend(home), timeout_s=120)
    unpatched, fixed = await asyncio.gather(grader.grade(row, ""), grader.grade(row, row.answer.gold_patch))
    assert (unpatched.verdict, fixed.verdict) == (Verdict.FAILED, Verdict.PASSED)
    failed = {test.test_id for test in unpatched.tests if test.outcome != "passed"}
    assert failed == set(row.answer.fail_to_pass)
