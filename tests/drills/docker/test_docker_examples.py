"""Example images in the layouts of R2E-Gym and SWE-bench: imported, and graded with and without the fix."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import docker
import docker.errors
import pytest

from engine.config.importing import ImportConfig
from engine.config.policies import NoopPolicyConfig, OraclePolicyConfig
from engine.config.rollout import DatasetConfig, GradingConfig, RolloutConfig
from engine.config.run import RolloutRun
from engine.config.sandbox import DockerConfig, SandboxConfig
from engine.datasets.importers.run import import_dataset
from engine.orchestrator import execute
from tests.docker_daemon import docker_host, one_at_a_time
from tests.integration.toy_yard import events, open_context

pytestmark = one_at_a_time

REPO = Path(__file__).parents[3]
EXAMPLES = REPO / ".trainyard" / "examples"
FORMATS = {"r2e-gym": ("r2e", "r2e_gym.jsonl"), "swe-bench": ("swe", "swe_bench.jsonl")}


@pytest.fixture(scope="module")
def host() -> str:
    """Address of a daemon that has the example images."""
    host = docker_host()
    try:
        images = json.loads((EXAMPLES / "images.json").read_text())
        for image in images.values():
            docker.APIClient(base_url=host, version="auto").inspect_image(image)
    except (FileNotFoundError, docker.errors.ImageNotFound) as error:
        pytest.skip(f"the example images are not here ({error}); `make docker-examples` builds them")
    return host


def test_example_build_without_a_daemon_fails_with_a_one_line_message(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "deploy/images/build_examples.py",
        str(tmp_path),
        "--docker",
        "unix:///nowhere",
    ]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("the example images cannot be built here: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("policy", "verdict"), [(OraclePolicyConfig(), "passed"), (NoopPolicyConfig(), "failed")]
)
@pytest.mark.parametrize("layout", FORMATS)
def test_example_task_is_solved_only_by_its_gold_patch(
    layout: str, policy: OraclePolicyConfig | NoopPolicyConfig, verdict: str, host: str, tmp_path: Path
) -> None:
    name, rows = FORMATS[layout]
    config = ImportConfig.model_validate({"format": layout, "output": name, "source": str(EXAMPLES / rows)})
    assert import_dataset(config, home=tmp_path).imported == 1
    run = RolloutRun(
        name=name,
        dataset=DatasetConfig(name=name),
        sandbox=SandboxConfig(backend="docker", docker=DockerConfig(host=host), memory_mb=1024),
        grading=GradingConfig(timeout_s=250.0),
        policy=policy,
        rollout=RolloutConfig(group_size=1),
    )
    with open_context(tmp_path, "run", run) as context:
        assert execute(run, context) == 0
    (ended,) = (row for row in events(tmp_path / "runs" / "run") if row["type"] == "trajectory_finished")
    assert (ended["verdict"], ended["reward"]) == (verdict, float(verdict == "passed"))
    expected = json.loads((EXAMPLES / rows).read_text())
    hidden = {test["test_id"] for test in ended["tests"]}
    if layout == "swe-bench":
        listed_tests = json.loads(expected["FAIL_TO_PASS"]) + json.loads(expected["PASS_TO_PASS"])
        assert hidden == set(listed_tests)
