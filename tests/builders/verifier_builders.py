"""Finished runs in a data folder, written event by event, and runs that verify them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from engine.config.recipes import resolve
from engine.config.run import VerifierRun
from engine.datasets.store import save_dataset
from engine.events.delivery.control import Control
from engine.events.delivery.spool import SpoolSink
from engine.events.types import RunStarted, StepFinished, TrajectoryFinished, TrajectoryRef, TrajectoryStarted
from engine.orchestrator.context import RunContext
from tests.builders.rollout_builders import make_row
from tests.builders.web.event_builders import spooled

TASKS = ("a" * 16, "b" * 16)
NOTHING: dict[str, Any] = {"termination": "model_error", "verdict": None, "reward": None}


class Source:
    """A finished run in a data folder, written event by event."""

    def __init__(self, home: Path, name: str = "7") -> None:
        self.home, self.run_dir = home, home / "runs" / name
        self.run_dir.mkdir(parents=True)
        (self.run_dir / "config.json").write_text(json.dumps({"seed": 0, "dataset": {"name": "toy"}}))
        rows = [make_row(task) for task in TASKS]
        save_dataset(home, "toy", rows, {})

    @contextmanager
    def attempt(self, epoch: int = 1, **started: Any) -> Iterator[SpoolSink]:
        with closing(SpoolSink(self.run_dir, epoch=epoch)) as sink:
            sink.emit(RunStarted, host="h", pid=1, **started)
            yield sink


def roll_out(
    sink: SpoolSink, task_id: str, index: int, *, passed: bool = True, phase: str = "train", **ended: Any
) -> None:
    ref = TrajectoryRef(iteration=0, phase=phase, task_id=task_id, index=index)
    sink.emit(TrajectoryStarted, ref=ref)
    text = f"I mend {task_id[0]}{index}."
    sink.emit(
        StepFinished, ref=ref, index=0, thought=text, response=text, tool="finish",
        arguments={"command": "submit"}, observation="",
    )  # fmt: skip
    graded = {
        "termination": "submitted",
        "verdict": "passed" if passed else "failed",
        "reward": float(passed),
        "patch": f"+ {task_id[0]}{index}\n",
    }
    sink.emit(TrajectoryFinished, ref=ref, num_steps=1, **{**graded, **ended})


def events(home: Path, name: str, kind: str = "") -> list[dict[str, Any]]:
    """Return the events of a run, or those of a type."""
    return spooled(home / "runs" / name, kind)


@contextmanager
def verifying(home: Path, config: VerifierRun, *, epoch: int = 1) -> Iterator[RunContext]:
    run_dir = home / "runs" / "v"
    run_dir.mkdir(exist_ok=True)
    with closing(SpoolSink(run_dir, epoch=epoch)) as sink:
        yield RunContext(run_id="v", epoch=epoch, run_dir=run_dir, home=home, sink=sink, control=Control())


def by_model(**settings: Any) -> VerifierRun:
    overrides = {
        "policy.checkpoint": "fresh:tiny", "verifier.runs": ["7"], "verifier.max_context": 2048, **settings,
    }  # fmt: skip
    config = resolve("verify", overrides)
    assert isinstance(config, VerifierRun)
    return config
