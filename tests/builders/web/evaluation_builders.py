"""Builders for runs with one evaluation of given outcomes, and for verifier runs that score its rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.conf import settings

from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.web_builders import launched, post
from webapp.models import Run, Task
from webapp.runs.services import runs

Outcomes = tuple[tuple[tuple[bool | None, ...], str], ...]
FIRST: Outcomes = (
    ((True, True, False, False), "aabb"),
    ((True, False, False, False), "abbb"),
    ((False, False, None, False), "aaaa"),
    ((True, True, True, True), "aaaa"),
)
"""Per task: whether each rollout passed (None: lost to infrastructure), and a letter for its patch."""
SECOND: Outcomes = (
    ((True, True, True, True), "aabb"),
    ((False, False, False, False), "abbb"),
    ((True, True, None, True), "aaaa"),
    ((True, True, True, True), "aaaa"),
)


def evaluated(tasks: list[Task], outcomes: Outcomes) -> Run:
    """Create a run with one evaluation of rollouts with these outcomes."""
    run, claim = launched()
    stream = Stream(epoch=claim.epoch)
    stream.started()
    evaluate(stream, tasks, outcomes)
    end_evaluation(stream)
    post(claim, stream)
    run.refresh_from_db()
    return run


def evaluate(stream: Stream, tasks: list[Task], outcomes: Outcomes) -> None:
    """Add the rollouts of an evaluation with these outcomes."""
    for task, (solved, patches) in zip(tasks, outcomes, strict=False):
        for index, (passed, patch) in enumerate(zip(solved, patches, strict=True)):
            rollout(stream, ref(0, task.key, index, phase="eval:heldout"), index + 1, passed, patch)


def end_evaluation(stream: Stream) -> None:
    """Add the end of an evaluation."""
    stream.add(
        "evaluation_finished", iteration=0, name="heldout", policy_version=0, num_samples=1,
        num_tasks=1, num_solved=1, solve_rate=1.0, interval_low=0.2, interval_high=1.0,
    )  # fmt: skip


def rollout(stream: Stream, key: dict[str, Any], steps: int, passed: bool | None, patch: str) -> None:
    """Add a rollout; odd numbers of steps end with a submission, even ones at a limit."""
    stream.add("trajectory_started", ref=key, sandbox_id="s-1")
    for index in range(steps):
        stream.step(key, index, prompt_tokens=1000 * (index + 1), generated_tokens=100)
    reward = None if passed is None else float(passed)
    stream.add(
        "trajectory_finished", ref=key, num_steps=steps, reward=reward, patch=patch, prompt="p",
        termination="env_error" if passed is None else "submitted" if steps % 2 else "max_steps",
        verdict=None if passed is None else "passed" if passed else "failed",
        tests=[], generated_tokens=100 * steps, total_seconds=10.0, cost=0.25,
    )  # fmt: skip


def scored(run: Run, task: Task, p_yes: Mapping[int, float | None], *, epoch: int | None = None) -> Run:
    """Create a verifier run with scores of a task's rollouts from attempt ``epoch`` of their run."""
    (Path(settings.TRAINYARD_HOME) / "runs" / str(run.pk)).mkdir(parents=True, exist_ok=True)
    overrides = {
        "policy.checkpoint": "fresh:tiny",
        "verifier.max_context": 2048,
        "verifier.runs": [str(run.pk)],
    }
    verifier, claim = launched(runs.create(recipe="verify", overrides=overrides))
    stream = Stream(epoch=claim.epoch)
    stream.started(total=0)
    for index, value in p_yes.items():
        key = ref(0, task.key, index, phase="eval:heldout")
        score = {"p_yes": value, "error": "no answer" if value is None else ""}
        stream.add("trajectory_scored", source=str(run.pk), source_epoch=epoch, ref=key, score=score)
    post(claim, stream)
    return verifier
