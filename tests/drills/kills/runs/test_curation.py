"""Curation interrupted during its trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.datasets.curation import trials
from engine.datasets.curation.measurements import Trial
from engine.errors import DatasetError
from engine.testing.testrun import TestRun
from tests.builders.dataset_builders import toolchain_or_skip, write_toy
from tests.integration.sandboxes.test_curation import config, run


async def test_curation_repeats_trials_without_a_report_and_keeps_finished_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timeout does not reject a fault, and a test file that fails to import affects no other file."""
    home = tmp_path / "home"
    toolchain_or_skip(home)
    tree = write_toy(tmp_path / "cut")
    (tree / "tests/test_extra.py").write_text("import not_installed\n")
    settings = config(home, sources=(str(tree),), output="cut", heldout_tasks=0, workers=1, stability_runs=1)

    async def time_out(*_arguments: object, **_options: object) -> TestRun:
        return TestRun(timed_out=True, problem="the tests hit their deadline")

    with monkeypatch.context() as patched:
        patched.setattr(trials, "run_tests", time_out)
        with pytest.raises(DatasetError, match="detected no fault"):
            await run(home, settings)
    tried: list[str] = []
    try_fault = trials._try

    async def interrupt_second_trial(*arguments: Any) -> Trial:
        if len(tried) == 1:
            raise InterruptedError
        tried.append(arguments[1].mutated)
        return await try_fault(*arguments)

    monkeypatch.setattr(trials, "_try", interrupt_second_trial)
    with pytest.raises(InterruptedError):
        await run(home, settings)
    first = list(tried)
    tried[:] = ["one more never stops it"] * 2
    curated, _ = await run(home, settings)
    assert len(curated.rows) == 2
    assert not set(first) & set(tried[2:])
