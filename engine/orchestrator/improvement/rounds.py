"""Records of a run's rounds, and their fine-tuning as part of the run."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from engine.config.learning.fine_tuning import ConversationConfig, FineTuningConfig
from engine.config.run import FineTuneRun, ImproveRun
from engine.errors import CheckpointError
from engine.events.delivery.sink import EventSink
from engine.events.delivery.spool import read_lines
from engine.events.types import (
    CheckpointSaved,
    IterationFinished,
    IterationStarted,
    RunPlanned,
    RunProgress,
    RunStarted,
)
from engine.files import atomic_write
from engine.models.frozen import freeze_policy
from engine.orchestrator.collection.ledger import type_of
from engine.orchestrator.context import RunContext, RunStopped
from engine.orchestrator.fine_tune import fine_tune
from engine.trainer.checkpoints.checkpoint import Checkpoint, load_latest

ROUNDS = "rounds"
"""Folder in the run's folder with each round's training data and, while it lasts, its checkpoints."""
_SAMPLED = "sampled.json"
"""File of a round with the metrics of its rollouts and the counts of those that are kept."""


@dataclass(slots=True)
class Record:
    """Results of all attempts, by round."""

    metrics: dict[int, Mapping[str, float]] = field(default_factory=dict)
    """Finished round → its metrics."""
    evaluations: dict[int, Mapping[str, float]] = field(default_factory=dict)
    """Number of finished rounds → solve rate of the evaluation after them, with its interval."""
    rollouts: int = 0
    """Finished rollouts, evaluations included."""

    @classmethod
    def read(cls, spool: Path) -> Self:
        """Read what earlier attempts recorded."""
        record = cls()
        for line in read_lines(spool):
            match type_of(line.data):
                case "trajectory_finished":
                    record.rollouts += 1
                case "iteration_finished":
                    event = json.loads(line.data)
                    record.metrics[event["iteration"]] = event["metrics"]
                case "evaluation_finished":
                    event = json.loads(line.data)
                    record.evaluations[event["iteration"]] = event
        return record


def policy_folder(run_dir: Path, rounds: int) -> Path:
    """Return the folder of the policy after ``rounds`` rounds; 0 is the run's first policy."""
    return run_dir / "checkpoints" / f"{rounds:05d}" if rounds else run_dir / "start"


async def tune(config: ImproveRun, run: RunContext, number: int) -> Mapping[str, Any]:
    """Fine-tune a policy on a round's kept rollouts, or resume an earlier attempt; return the summary.

    Args:
        config: the run's configuration.
        run: this attempt.
        number: the round, from 0.

    Raises:
        RunStopped, FencedError, DeliveryError: the attempt must end.
        DatasetError: none of the kept rollouts can be trained on.
    """
    start = number if config.improvement.start_from == "previous" else 0
    tuning = FineTuneRun(
        name=config.name,
        seed=config.seed,
        trainer=FineTuningConfig(**config.trainer.model_dump(), start=str(policy_folder(run.run_dir, start))),
        conversation=_conversation(config),
    )
    round_run = dataclasses.replace(run, run_dir=round_folder(run.run_dir, number), sink=_RoundSink(run.sink))
    result = await fine_tune(tuning, round_run)
    if result.state == "stopped":
        raise RunStopped(result.reason)
    return result.summary


def _conversation(config: ImproveRun) -> ConversationConfig:
    """Return the rendering of rollouts whose ids do not decode to their responses; FrozenLake has none."""
    agent = config.agent
    if agent.tool_format == "words":
        return ConversationConfig()
    return ConversationConfig(
        prompt=agent.prompt,
        tool_format=agent.tool_format,
        tools=agent.tools,
        thinking_history=agent.thinking_history,
    )


def sampled_metrics(run_dir: Path, number: int) -> Mapping[str, float] | None:
    """Return the metrics of a round's rollouts; None until its training data is complete."""
    try:
        metrics: Mapping[str, float] = json.loads((round_folder(run_dir, number) / _SAMPLED).read_text())
    except FileNotFoundError:
        return None
    return metrics


def record_sampled(run_dir: Path, number: int, metrics: Mapping[str, float]) -> None:
    """Record that a round's training data is complete: later attempts neither sample nor choose again."""
    text = json.dumps(dict(metrics), indent=2, sort_keys=True) + "\n"
    atomic_write(round_folder(run_dir, number) / _SAMPLED, text, durable=True)


def round_folder(run_dir: Path, number: int) -> Path:
    """Return the folder of a round, from 0."""
    return run_dir / ROUNDS / f"{number + 1:02d}"


def publish(run_dir: Path, number: int, *, home: Path) -> Checkpoint:
    """Make the last checkpoint of a round's fine-tuning the run's checkpoint; return it.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    source = round_folder(run_dir, number)
    checkpoint = load_latest(source)
    if checkpoint is None:
        raise CheckpointError(f"round {number + 1} has no checkpoint: resume the run to train it again")
    target = policy_folder(run_dir, number + 1)
    folder = freeze_policy(str(checkpoint.path), target, home=home, temporary=source)
    return dataclasses.replace(checkpoint, path=folder, iteration=number + 1)


def clean(run_dir: Path, number: int) -> None:
    """Remove the files that only a round in progress needs, such as the optimizer's state."""
    folder = round_folder(run_dir, number)
    for path in (folder / "checkpoints", folder / "base"):
        shutil.rmtree(path, ignore_errors=True)


class _RoundSink:
    """Sink of a fine-tuning within a run, which records steps as progress of a round, not as iterations.

    Args:
        sink: the run's.
    """

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._total = 0

    def emit(self, event_type: type[Any], /, **fields: Any) -> int:
        """Record an event as part of the round; return 0 for one that is left out."""
        if event_type is RunPlanned:
            self._total = fields["total_iterations"]
        if event_type is IterationFinished:
            return self._sink.emit(
                RunProgress, message="fine-tuning", done=fields["iteration"] + 1, total=self._total
            )
        if event_type in (RunStarted, RunPlanned, IterationStarted, CheckpointSaved):
            return 0
        return self._sink.emit(event_type, **fields)
