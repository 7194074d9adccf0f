"""Tests by a model behind a local endpoint for commits without any, in real sandboxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config.curation import CommitCuration
from engine.config.sandbox import SandboxConfig
from engine.datasets.commits.languages.python.environments import resolve
from engine.datasets.commits.make import make_commit_tasks
from engine.datasets.commits.trials import Workshop
from engine.datasets.store import Dataset
from engine.errors import DatasetError, PreflightError
from engine.sandbox.local.backend import LocalBackend
from engine.types import Verdict
from tests.builders.curation_models import READY, endpoint_config, opened_models
from tests.builders.dataset_builders import make_grader, toolchain_or_skip
from tests.builders.repository_builders import GitHistory
from tests.fakes.openai_server import OpenAIServer, Reply, openai_server

PROJECT = '[project]\nname = "toy"\nversion = "1.0"\n'
FUNCTIONS = {
    "clamp": ("max(low, value)", "min(high, max(low, value))"),
    "total": ("sum(values)", "sum(values or ())"),
    "first": ("values[0]", "values[0] if values else None"),
    "join": ("','.join(values)", "', '.join(values)"),
}
ARGUMENTS = {"clamp": "value, low, high"}
ISSUE = """clamp ignores its upper bound

Calling `clamp(9, 1, 3)` from `toy.numbers` returns 9. I expected 3, the upper bound that was given."""
GOOD_TEST = "from toy import numbers\n\n\ndef test_upper_bound():\n    assert numbers.clamp(9, 1, 3) == 3\n"


def code(*mended: str) -> str:
    return "\n\n".join(
        f"def {name}({ARGUMENTS.get(name, 'values')}):\n    return {bodies[name in mended]}\n"
        for name, bodies in FUNCTIONS.items()
    )


def history(folder: Path) -> None:
    repository = GitHistory(folder)
    repository.commit("Begin.", {"pyproject.toml": PROJECT, "toy/__init__.py": "", "toy/numbers.py": code()})
    for number, name in enumerate(FUNCTIONS, start=1):
        mended = list(FUNCTIONS)[:number]
        repository.commit(f"Mend the function {name}.", {"toy/numbers.py": code(*mended)})


def block(text: str) -> Reply:
    return Reply(content=f"Here:\n```python\n{text}```\nDone.")


def script(body: dict[str, Any], number: int) -> Reply:
    texts = [message["content"] for message in body["messages"]]
    system, asked = texts[0], texts[-1]
    if "ready?" in asked:
        return READY
    if "You write issues" in system:
        return Reply(content=f"[ISSUE]{ISSUE}[/ISSUE]")
    if "+    return min(high" in asked:
        passing = GOOD_TEST.replace("(9, 1, 3) == 3", "(2, 1, 3) == 2")
        return block(GOOD_TEST if "written_pass_before" in asked else passing)
    if "+    return sum(values or" in asked:
        return block("from toy import numbers\n\n\ndef test_none():\n    assert numbers.total(None) == 7\n")
    if "+    return values[0] if" in asked:
        return block("import toy.absent\n\n\ndef test_first():\n    assert toy.absent\n")
    return Reply(content="I would rather not.")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    toolchain_or_skip(folder)
    try:
        resolve((), before=None)
    except (DatasetError, PreflightError) as error:
        pytest.skip(str(error))
    history(folder / "toy")
    return folder


async def curated(home: Path, server: OpenAIServer, backend: Any, output: str) -> Dataset:
    values = {
        "repositories": (str(home / "toy"),), "output": output, "stability_runs": 2, "heldout_tasks": 0,
        "writer": endpoint_config(server), "writing": {"attempts": 2},
    }  # fmt: skip
    config = CommitCuration.model_validate(values)
    async with opened_models(home, config) as (writer, judge):
        shop = Workshop(
            config=config, home=home, backend=backend, sandbox=SandboxConfig(memory_mb=256), seed=0,
            writer=writer, judge=judge,
        )  # fmt: skip
        return await make_commit_tasks(shop, lambda *_, **__: None)


async def test_only_tests_that_the_change_mends_make_a_task(home: Path) -> None:
    backend = LocalBackend(home)
    with openai_server(script) as server:
        dataset = await curated(home, server, backend, "written")
        asked = len(server.requests)
        again = await curated(home, server, object(), "again")
        assert len(server.requests) == asked + 1  # the check alone
    stages = {stage["stage"]: stage for stage in dataset.provenance["funnel"]}
    lost = {reason: number for stage in stages.values() for reason, number in stage["lost"].items()}
    assert lost == {"first_commit": 1, "not_written": 1, "written_do_not_run": 1, "written_fail_after": 1}
    assert (stages["has tests"]["written"], stages["stated"]["written"]) == (3, 1)
    assert dataset.provenance["statements"] == {"written": 1}
    (row,) = dataset.rows
    assert again.rows == dataset.rows
    assert row.task.problem_statement == ISSUE
    assert row.answer.fail_to_pass == ("written_tests/test_behaviour.py::test_upper_bound",)
    assert row.answer.test_files == {"written_tests/test_behaviour.py": GOOD_TEST}
    tests = row.answer.metadata["tests"]
    assert (tests["method"], tests["model"]) == ("written", "m")
    assert [item["result"] for item in tests["rejected"]] == ["written_pass_before"]
    grader = make_grader(backend)
    assert (await grader.grade(row, "")).verdict is Verdict.FAILED
    assert (await grader.grade(row, row.answer.gold_patch)).verdict is Verdict.PASSED
