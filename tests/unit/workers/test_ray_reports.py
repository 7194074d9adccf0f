"""Reports about jobs of a Ray cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from workers.launchers.base import LaunchOrder, ProcessState
from workers.launchers.ray.jobs import ENTRYPOINT_FAILED, Job
from workers.launchers.ray.launcher import NODE_UNFIT, report_of, start_script


@pytest.mark.parametrize("header_first", [True, False], ids=["in order", "script after what it printed"])
def test_the_reason_is_found_wherever_ray_logs_the_script(header_first: bool, tmp_path: Path) -> None:
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
