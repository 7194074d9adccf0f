"""Curation of a toy package and its tasks, in real sandboxes."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

from engine.config.learning.training import CurationConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.curation.candidates import Candidate, CandidateQueue
from engine.datasets.curation.curate import curate
from engine.datasets.curation.handwritten import build_task
from engine.datasets.sources.fetch import fetch_source
from engine.datasets.store import Dataset, load_dataset
from engine.errors import DatasetError, PreflightError
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


async def run(home: Path, settings: CurationConfig) -> tuple[Dataset, list[str]]:
    reports: list[tuple[str, int]] = []
    dataset = await curate(
        settings,
        home=home,
        backend=LocalBackend(home),
        sandbox=SANDBOX,
        progress=lambda message, done, _total: reports.append((message, done)),
    )
    counts = [done for _, done in reports]
    assert counts == sorted(counts), "what is done stays done"
    return dataset, [message for message, _ in reports]


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


def test_provenance_counts_each_tried_candidate_by_outcome(dataset: Dataset, tried: list[Candidate]) -> None:
    counts = dataset.provenance["candidates"]
    assert counts["kept"] == len(dataset.rows)
    assert sum(counts.values()) == len(tried) > counts["kept"]
    assert set(counts) - {"kept"} <= {
        "not_wanted", "unnoticed", "odd_outcome", "unstable", "not_mended", "no_report", "sandbox", "machine",
    }  # fmt: skip


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
    reused, messages = await run(home, config(home, workers=1))
    assert reused.rows == dataset.rows
    assert "dataset 'toy' is up to date" in messages
    rebuilt, messages = await run(home, config(home, train_tasks=1, heldout_tasks=0, hint="function"))
    assert [row.split for row in rebuilt.rows] == ["train"]
    assert "line " not in rebuilt.rows[0].task.problem_statement.split("\n")[1]


async def test_repeated_curation_reuses_stored_trials_and_opens_no_sandbox(
    home: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> NoReturn:
        pytest.fail("a sandbox was opened")

    monkeypatch.setattr(LocalBackend, "open", refuse)
    repeated, messages = await run(home, config(home, output="again"))
    assert repeated.rows == dataset.rows
    assert repeated.provenance["candidates"] == dataset.provenance["candidates"], "kept with their reasons"
    assert not any("baseline" in message for message in messages)


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
