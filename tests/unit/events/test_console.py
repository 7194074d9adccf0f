"""Console lines of progress and evaluation events."""

from __future__ import annotations

import io
from typing import Any

from engine.events.delivery.console import ConsoleSink
from engine.events.types import CollectionProgress, EvaluationFinished, RunProgress
from tests.unit.orchestrator.memory_sink import MemorySink

STATE = CollectionProgress(
    endings={"submitted": 1, "rollout_timeout": 3}, graded=4, solved=1, lost=2, queued=3, starting=1,
    sampling=2, tools=1, running=4, steps=17, generated_tokens=0, tokens_per_s=83.4,
)  # fmt: skip


def printed(event: type[Any], **fields: Any) -> str:
    stream = io.StringIO()
    ConsoleSink(MemorySink(), stream).emit(event, **fields)
    return stream.getvalue()


def test_progress_line_has_steps_endings_next_phase_and_time_left() -> None:
    later = {"follows": "fine-tuning", "seconds_left": 60.0}
    line = printed(RunProgress, message="rollouts", done=6, total=8, collection=STATE, **later)
    assert line == (
        "rollouts: 6/8  solved 1/4  queued 3  starting 1  sampling 2  in tools 1  steps 17  tokens/s 83  "
        "rollout time limit 3  lost 2  then fine-tuning  left 0:01:00\n"
    )
    begun = CollectionProgress(graded=0, solved=0, lost=0, queued=4, running=0, steps=0, generated_tokens=0)
    line = printed(RunProgress, message="rollouts", done=0, total=4, collection=begun)
    assert line == "rollouts: 0/4  queued 4\n", "no share of nothing"
    assert printed(RunProgress, message="waiting", done=0, total=0) == "waiting\n"
    assert printed(RunProgress, message="", done=0, total=0) == ""


def test_evaluation_line_names_the_limits_that_ended_rollouts() -> None:
    line = printed(
        EvaluationFinished, iteration=0, name="heldout", solve_rate=0.188, interval_low=0.1,
        interval_high=0.3, num_solved=48, num_samples=256, num_tasks=64,
        metrics={"termination/submitted": 0.04, "termination/rollout_timeout": 0.96},
    )  # fmt: skip
    assert "0.188 [0.100, 0.300] (48/256 on 64 tasks)  ended by rollout time limit 96%" in line
