"""Curation of tasks with faults by a model behind a local endpoint, in real sandboxes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from engine.config.curation import CurationConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.curation.curate import curate
from engine.datasets.store import Dataset
from engine.errors import SpendLimitError
from engine.sandbox.local.backend import LocalBackend
from engine.types import TaskRow, Verdict
from tests.builders.curation_models import READY, endpoint_config, opened_models
from tests.builders.dataset_builders import make_grader, toolchain_or_skip, without_reuse, write_toy
from tests.fakes.openai_server import OpenAIServer, Reply, openai_server

CHANGES = {
    "clamp": ("    if value > high:\n        return high\n    return value", "    return value"),
    "mean": ("count = len(values)", "count = len(values)\n    count = max(count, 4)"),
    "positives": ("value > 0:", "value >= 0:  # the bug is here"),
    "shout": ('mark="!"', 'mark="?"'),
    "count_vowels": ("count += 1", "count += 2"),
}
"""Function → change in the last answer about it."""


def script(body: dict[str, Any], number: int) -> Reply:
    asked = body["messages"][-1]["content"]
    if "ready?" in asked:
        return READY
    function = re.search(r"\n```python\n(def (\w+)\(.*?)\n```\n", asked, re.DOTALL)
    assert function is not None
    code, name = function.groups()
    if name not in CHANGES:
        return Reply(content="I would rather not.")
    is_first = "Your last answer was rejected" not in asked
    if name == "count_vowels" and is_first:
        code = code.replace("for letter in text", "for letter in sorted(text)")
    elif name != "mean" or not is_first:
        code = code.replace(*CHANGES[name])
    return Reply(content=f"Here it is:\n```python\n{code}\n```\nIt is subtle.")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written-faults")
    toolchain_or_skip(folder)
    write_toy(folder / "toy")
    return folder


async def curated(home: Path, server: OpenAIServer, backend: Any, output: str, **changes: Any) -> Dataset:
    writer = endpoint_config(server, **changes.pop("writer", {}))
    values = {
        "sources": (str(home / "toy"),), "output": output, "train_tasks": 6, "heldout_tasks": 0,
        "stability_runs": 2, "writer": writer, "writing": {"attempts": 2},
    }  # fmt: skip
    config = CurationConfig.model_validate(values | changes)
    async with opened_models(home, config) as (model, _):
        return await curate(
            config, home=home, backend=backend, sandbox=SandboxConfig(memory_mb=256),
            progress=lambda *_, **__: None, writer=model,
        )  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Any:
    with openai_server(script) as running:
        yield running


@pytest.fixture(scope="module")
def dataset(home: Path, server: OpenAIServer) -> Dataset:
    return asyncio.run(curated(home, server, LocalBackend(home), "written"))


def test_only_faults_that_the_tests_detect_make_tasks(dataset: Dataset) -> None:
    stages = {stage["stage"]: stage for stage in dataset.provenance["funnel"]}
    lost = {reason: number for stage in stages.values() for reason, number in stage["lost"].items()}
    assert lost == {"not_written": 1, "other_function": 1, "reveals": 1}
    assert (stages["functions"]["reached"], stages["written"]["reached"]) == (6, 3)
    [example] = dataset.provenance["examples"]["reveals"]
    assert example["item"].endswith(" positives")
    assert example["detail"] == "a new comment: # the bug is here"
    rows = {row.task.metadata["function"]: row for row in dataset.rows}
    assert set(rows) == {"clamp", "mean", "count_vowels"}
    fault = rows["mean"].answer.metadata
    assert (fault["kind"], fault["path"]) == ("written", "toy/numbers.py")
    assert (fault["original"], fault["mutated"]) == (
        "    return total / count", "    count = max(count, 4)\n    return total / count"
    )  # fmt: skip
    assert f"line {fault['line']}: `count = max(count, 4)`" in rows["mean"].task.problem_statement
    assert "-    count = max(count, 4)" in rows["mean"].answer.gold_patch


async def test_rows_fail_untouched_and_pass_with_their_gold_patch(home: Path, dataset: Dataset) -> None:
    grader = make_grader(LocalBackend(home))

    async def verdicts(row: TaskRow) -> list[Verdict]:
        plain = without_reuse(row)
        return [(await grader.grade(plain, patch)).verdict for patch in ("", row.answer.gold_patch)]

    expected = [[Verdict.FAILED, Verdict.PASSED]] * len(dataset.rows)
    assert await asyncio.gather(*map(verdicts, dataset.rows)) == expected


async def test_a_second_curation_asks_and_tries_nothing_again(
    home: Path, dataset: Dataset, server: OpenAIServer
) -> None:
    asked = len(server.requests)
    again = await curated(home, server, object(), "again")
    assert len(server.requests) == asked + 1  # the check alone
    assert again.rows == dataset.rows
    for name in ("funnel", "examples", "tasks", "trial_seconds"):
        assert again.provenance[name] == dataset.provenance[name]


async def test_written_faults_are_combined_in_the_lines_of_the_broken_file(
    home: Path, dataset: Dataset, server: OpenAIServer
) -> None:
    pair = await curated(home, server, LocalBackend(home), "pair", faults_per_task=2)
    [row] = pair.rows
    assert row.task.metadata["function"] == "clamp, mean"
    stages = {stage["stage"]: stage for stage in pair.provenance["funnel"]}
    assert (stages["combined"]["lost"], stages["wanted"]["reached"]) == ({"alone": 1}, 2)
    image = home / "images" / row.task.image.removeprefix("local:") / "rootfs/testbed/toy/numbers.py"
    lines = ["", *image.read_text().split("\n")]
    for fault in row.answer.metadata["faults"]:
        mutated = fault["mutated"].split("\n")
        assert lines[fault["line"] : fault["line"] + len(mutated)] == mutated
    for name, first, last in re.findall(r"`(\w+)` \(lines (\d+)-(\d+)\)", row.task.problem_statement):
        assert lines[int(first)].startswith(f"def {name}(")
        assert lines[int(last)].startswith("    return ")
    grader, plain = make_grader(LocalBackend(home)), without_reuse(row)
    assert (await grader.grade(plain, "")).verdict is Verdict.FAILED
    assert (await grader.grade(plain, row.answer.gold_patch)).verdict is Verdict.PASSED


async def test_a_reached_spend_limit_ends_the_curation(home: Path, server: OpenAIServer) -> None:
    writer = {"temperature": 0.5, "input_price": 1000, "output_price": 1000, "spend_limit": 0.2}
    with pytest.raises(SpendLimitError):
        await curated(home, server, LocalBackend(home), "dear", writer=writer)
