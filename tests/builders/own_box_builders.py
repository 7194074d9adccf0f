"""A Harbor task about system state: a file outside of the workdir, graded in the agent's sandbox."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.config.importing import ImportConfig
from engine.config.rollout import GradingConfig
from engine.config.sandbox import DockerConfig, SandboxConfig
from engine.datasets.importers.run import import_dataset
from engine.datasets.store import load_dataset
from engine.errors import PatchError
from engine.grading.grader import Grader
from engine.orchestrator.importing import obstacle
from engine.rollout.environments import SweEnvironments
from engine.sandbox.base import SandboxBackend
from engine.sandbox.docker.backend import DockerBackend
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.local.images import build_image
from engine.sandbox.pool.pool import SandboxPool
from engine.testing.toolchain import MOUNT
from engine.types import CounterfactualOutcome, Grade, TaskRow, ToolCall, Verdict
from tests.builders.dataset_builders import NO_PLUGINS, toolchain_or_skip, write_toy
from tests.builders.rollout_builders import make_key, quick_agent
from tests.docker_daemon import docker_host
from tests.unit.datasets.importers import folders

ANSWER = "/tmp/state/answer.txt"
SOLUTION = f"mkdir -p /tmp/state && echo 42 > {ANSWER}\n"
REWARD = "/tmp/verifier/reward.txt"
_TESTS = f"""from pathlib import Path


def test_state():
    assert Path("{ANSWER}").read_text() == "42\\n"
"""
_SCRIPT = (
    f"python3 -m pytest -rA -p no:cacheprovider {NO_PLUGINS} /tests/test_state.py\n"
    "if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
)
_PLACES = {"/logs/verifier": "/tmp/verifier", "/tests/": "/tmp/tests/", '"/tests"': '"/tmp/tests"'}
"""Replacements of paths, as only the workdir and ``/tmp`` are writable in local images."""


@asynccontextmanager
async def opened(name: str, home: Path) -> AsyncIterator[SandboxBackend]:
    """Open a backend by name; skip the calling test if no Docker daemon answers."""
    backend: SandboxBackend = LocalBackend(home)
    if name == "docker":
        backend = DockerBackend(DockerConfig(host=docker_host()), home)
    try:
        yield backend
    finally:
        await backend.close()


def state_task(home: Path, *, mode: str = "shared", solution: str = SOLUTION) -> TaskRow:
    """Build the image, import the task and return it.

    Args:
        mode: ``environment_mode`` in ``task.toml``; empty omits it.
    """
    environment = {"PYTHONPATH": MOUNT, "PYTHONDONTWRITEBYTECODE": "1"}
    binds = {MOUNT: str(toolchain_or_skip(home))}
    build_image(home, "state", write_toy(home / "state-source"), env=environment, binds=binds)
    toml = folders.HARBOR_TOML.replace("acme/clamp:1", "local:state").replace('"/work"', '"/testbed"')
    if mode:
        toml = toml.replace("[verifier]\n", f'[verifier]\nenvironment_mode = "{mode}"\n')
    files: dict[str, Any] = {
        "task.toml": toml, "tests/test.sh": _SCRIPT, "tests/test_state.py": _TESTS,
        "tests/test_secret_upper.py": None, "solution/solve.sh": solution,
    }  # fmt: skip
    source = folders.harbor_task(home / f"harbor-{mode}", **files).parent
    text = json.dumps(asdict(_imported(home, "harbor", source)))
    for old, new in _PLACES.items():
        text = text.replace(old, new)
    lines = home / "state.jsonl"
    lines.write_text(text + "\n")
    return _imported(home, "trainyard", lines)


def _imported(home: Path, form: str, source: Path) -> TaskRow:
    config = ImportConfig(format=form, source=str(source), output=f"state-{form}", mode="replace")
    result = import_dataset(config, home=home, gradable=obstacle)
    assert (result.imported, result.ungradable) == (1, 0)
    return load_dataset(home, f"state-{form}").rows[0]


def environments(backend: SandboxBackend, *, own_box: bool = True) -> SweEnvironments:
    """Return environments of rollouts in real sandboxes with the real grader."""
    sandbox = SandboxConfig(memory_mb=256, disk_mb=64)
    pool = SandboxPool(backend, sandbox)
    grading = GradingConfig(timeout_s=60.0, own_box=own_box)
    grader = Grader(backend=pool, config=grading, sandbox=sandbox, run_id="r1")
    return SweEnvironments(pool=pool, grader=grader, agent=quick_agent(), sandbox=sandbox, run_id="r1")


async def graded_after(built: SweEnvironments, row: TaskRow, *commands: str) -> Grade:
    """Run commands as an agent in its sandbox, and grade the result."""
    environment = built.make(make_key(), row, seed=0)
    await environment.reset()
    try:
        for command in commands:
            call = ToolCall(name="execute_bash", arguments={"cmd": command})
            step = await environment.step(call, timeout_s=60.0)
            print(step.observation)
        try:
            patch = await environment.patch()
        except PatchError:
            patch = ""
        if environment.grades_in_place:
            return await environment.grade(patch)
    finally:
        await environment.close()
    return await environment.grade(patch)


async def assert_state_counts(backend: SandboxBackend, row: TaskRow) -> None:
    """Check the grades of a solution, a wrong solution and no change, each in its agent's sandbox."""
    built = environments(backend)
    solved = await graded_after(built, row, SOLUTION)
    assert (solved.verdict, solved.reward) == (Verdict.PASSED, 1.0), solved.log
    assert (solved.counterfactual, solved.extra_runs) == (CounterfactualOutcome.OWN_BOX, 0)
    wrong = await graded_after(built, row, SOLUTION.replace("42", "41"))
    assert (wrong.verdict, wrong.reward, wrong.counterfactual) == (Verdict.FAILED, 0.0, None)
    assert (await graded_after(built, row)).verdict is Verdict.FAILED
