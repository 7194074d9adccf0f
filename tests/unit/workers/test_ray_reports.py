"""Jobs of a Ray cluster: start scripts and process reports."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

import pytest

from engine.config.recipes import resolve
from engine.errors import ConfigError
from workers.launchers.base import LaunchOrder, ProcessState
from workers.launchers.local import LocalLauncher
from workers.launchers.ray.jobs import ENTRYPOINT_FAILED, Job
from workers.launchers.ray.launcher import NODE_UNFIT, report_of, start_script


@pytest.mark.parametrize("header_first", [True, False], ids=["in order", "script after what it printed"])
def test_failure_reason_is_parsed_wherever_ray_logs_the_script(header_first: bool, tmp_path: Path) -> None:
    script = start_script(LaunchOrder(run_dir=tmp_path / "absent", name="trainyard-1-run-2-attempt-3"))
    ended = subprocess.run(script, shell=True, capture_output=True, text=True, check=False)
    assert ended.returncode == NODE_UNFIT
    header = f"Running entrypoint for job trainyard-1-run-2-attempt-3: {script}\n"
    logged = header + ended.stderr if header_first else ended.stderr + header
    message = f"Job entrypoint command failed with exit code {NODE_UNFIT}, last available logs:\n{logged}"
    report = report_of(Job("FAILED", message, ENTRYPOINT_FAILED))
    assert report.state is ProcessState.DEAD
    assert report.message.startswith("node ")
    assert report.message.endswith(
        f"there is no {tmp_path}/absent: the data folder must be storage that the workers' machine and the "
        "nodes share, at the same path"
    )


def test_only_a_run_that_uses_the_cluster_gets_its_token(tmp_path: Path) -> None:
    order = LaunchOrder(run_dir=tmp_path, name="one")
    assert "-u RAY_AUTH_TOKEN" in start_script(order)
    cluster_script = start_script(dataclasses.replace(order, uses_cluster=True))
    assert "RAY_AUTH_TOKEN" not in cluster_script
    assert "-u DATABASE_URL" in cluster_script


@pytest.mark.parametrize(
    ("setting", "others"), [("trainer.launcher", {}), ("policy.vllm.launcher", {"policy.engine": "vllm"})]
)
def test_cluster_processes_require_a_run_on_the_cluster(setting: str, others: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=rf"{re.escape(setting)}: .* set launcher\.backend to 'ray'"):
        LocalLauncher().check(resolve("quickstart", {setting: "ray", **others}))
    LocalLauncher().check(resolve("quickstart"))
