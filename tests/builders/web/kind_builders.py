"""Runs of every kind with the events that their engines write, in any state.

``make_kind(name, ending)`` creates a run of a kind in ``KINDS``. ``ending`` is a state: ``running``,
``paused``, ``succeeded``, ``failed`` or ``stopped``; a failed or stopped run has done half of its work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.conf import settings

from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.page_builders import make_dataset
from tests.builders.web.web_builders import launched, post
from webapp.models import Dataset, Run, Task
from webapp.runs.services import runs

REASONS = {"failed": "no sandbox could be started: bubblewrap is missing", "stopped": "a stop was requested"}
Summary = dict[str, Any]
Work = Callable[[Stream, "Yard", bool], Summary]


@dataclass(slots=True)
class Yard:
    """Tasks, and a run whose rollouts other runs read."""

    tasks: list[Task]
    source: str = ""


@dataclass(frozen=True, slots=True)
class _Kind:
    recipe: str
    work: Work
    overrides: dict[str, Any] = field(default_factory=dict)
    reads: str = ""
    """Setting for the run whose rollouts are read; the suffix ``[]`` marks a list of strings."""


def rollout(stream: Stream, key: dict[str, Any], verdict: str | None, detail: str = "") -> None:
    """Add a rollout with this verdict; None means lost to infrastructure."""
    reward = None if verdict is None else float(verdict == "passed")
    stream.add("trajectory_started", ref=key, sandbox_id="s-1")
    stream.step(key, 0)
    stream.add(
        "trajectory_finished", ref=key, num_steps=1, reward=reward, verdict=verdict, patch="+ x\n",
        termination="env_error" if verdict is None else "submitted", detail=detail, tests=[], prompt="p",
        error="the sandbox did not start" if verdict is None else "", generated_tokens=9,
    )  # fmt: skip


def progress(stream: Stream, message: str, done: int, total: int, **collection: Any) -> None:
    """Add progress as an engine reports it, optionally with the numbers of a collection."""
    state = {"graded": done, "solved": 0, "lost": 0, "running": 0, "steps": done, "prompt_tokens": 20 * done,
             "generated_tokens": 9 * done, "per_hour": 1200.0}  # fmt: skip
    extra = {"collection": state | collection} if collection else {}
    stream.add("run_progress", message=message, done=done, total=total, **extra)


def _train(stream: Stream, yard: Yard, whole: bool) -> Summary:
    keys = tuple(task.key for task in yard.tasks[:2])
    stream.evaluation(0, tasks=(yard.tasks[3].key,))
    for index in range(3 if whole else 1):
        stream.iteration(index, tasks=keys)
    if whole:
        stream.evaluation(3, tasks=(yard.tasks[3].key,))
    return {"iterations": 3, "trajectories": 12, "seconds": 60.0, "peak_memory_mb": 700.5}


def _evaluate(stream: Stream, yard: Yard, whole: bool) -> Summary:
    outcomes = ("passed", "passed", "failed", None)
    for task, outcome in zip(yard.tasks, outcomes if whole else outcomes[:2], strict=False):
        for index in range(2):
            rollout(stream, ref(0, task.key, index, phase="eval:heldout"), outcome)
    if whole:
        progress(stream, "rollouts", 8, 8, graded=6, solved=4, lost=2)
        stream.add(
            "evaluation_finished", iteration=0, name="heldout", policy_version=0, num_samples=6, num_tasks=3,
            num_solved=4, solve_rate=2 / 3, interval_low=0.125, interval_high=0.9375,
            pass_at_k=[{"k": 2, "rate": 0.75, "interval_low": 0.5, "interval_high": 1.0}],
        )  # fmt: skip
    else:
        progress(stream, "rollouts", 4, 8, graded=4, solved=4)
    return {"trajectories": 6, "solve_rate_last": 2 / 3, "interval_low": 0.125, "interval_high": 0.9375}


def _collect(verdicts: tuple[str | None, ...]) -> Work:
    def work(stream: Stream, yard: Yard, whole: bool) -> Summary:
        keys = [task.key for task in yard.tasks]
        stream.add("iteration_started", iteration=0, policy_version=0, task_ids=keys)
        done = verdicts if whole else verdicts[:2]
        for key, verdict in zip(keys, done, strict=False):
            rollout(stream, ref(0, key, 0), verdict, "" if verdict == "passed" else "1 of 3 tests failed")
        graded, solved = sum(v is not None for v in done), done.count("passed")
        progress(stream, "rollouts", len(done), 4, graded=graded, solved=solved, lost=len(done) - graded)
        if whole:
            metrics = {"reward/mean": solved / max(1, graded), "steps/mean": 1.0, "solve/rate": 0.5}
            stream.add("iteration_finished", iteration=0, policy_version=0, metrics=metrics)
        return {"iterations": 1, "trajectories": 4, "excluded": 1, "seconds": 9.0}

    return work


def _stream_sft(stream: Stream, yard: Yard, whole: bool) -> Summary:
    message = "step 120, 1.20M tokens, 40 000 tokens/s, answer loss 0.412, prompt loss 0.800"
    progress(stream, message, 30 if whole else 15, 30)
    if whole:
        stream.checkpoint(0)
    return {"steps": 240, "tokens": 2_400_000, "answer_tokens": 90_000, "episodes": 5_000, "functions": 812,
            "answer_loss": 0.312, "prompt_loss": 0.71, "heldout_episodes": 40,
            "heldout_greedy_exact_fix": 0.5, "seconds": 1800.0, "peak_memory_mb": 900.2}  # fmt: skip


def _fine_tune(stream: Stream, yard: Yard, whole: bool) -> Summary:
    stream.add("run_planned", total_iterations=4)
    stream.add("alert", severity="warning", code="trajectories_dropped",
               message="not trained on: 2 overlong")  # fmt: skip
    for step in range(4 if whole else 2):
        stream.add("iteration_started", iteration=step, policy_version=step, task_ids=[yard.tasks[0].key])
        metrics = {"loss/value": 1.5 - 0.25 * step, "update/learning_rate": 1e-4, "grad/norm": 0.9}
        if step in (1, 3):
            metrics["loss/heldout"] = 1.75 - 0.125 * step
        stream.add("iteration_finished", iteration=step, policy_version=step + 1, metrics=metrics)
    stream.checkpoint(4 if whole else 2)
    return {"train_trajectories": 21, "heldout_trajectories": 3, "recorded_ids": 20, "rendered": 4,
            "train_samples": 22, "cut_sequences": 1, "sampled_tokens": 4_321, "dropped_overlong": 2,
            "train_loss": 0.75, "heldout_loss_before": 1.875, "heldout_loss": 1.375, "steps": 4,
            "peak_memory_mb": 800.0, "seconds": 61.0}  # fmt: skip


FAULTS = {
    "funnel": [
        {"stage": "faults", "reached": 210},
        {"stage": "tried", "reached": 75, "lost": {"not_tried": 135}},
        {"stage": "noticed", "reached": 45, "lost": {"unnoticed": 30}},
        {"stage": "stable", "reached": 40, "lost": {"unstable": 5}},
    ],
    "examples": {
        "unnoticed": [{"origin": "pip:toolz==1.0.0", "item": "toolz/utils.py:9 raises", "detail": "<b>"}],
    },
    "skipped": {"pip:nothing==1": "there are no tests"},
    "tasks": 40,
    "trial_seconds": 90.0,
    "disk_bytes": 4_000_000,
}
"""Funnel of a curation by injected faults."""


def _curate(stream: Stream, yard: Yard, whole: bool) -> Summary:
    progress(stream, "210 candidate faults on lines that tests execute", 0, 40)
    done = 40 if whole else 12
    stream.add("run_progress", message="train tasks", done=done, total=40, funnel=FAULTS | {"tasks": done})
    return {"dataset": "curated", "tasks_train": 32, "tasks_heldout": 8, "faults": 210, "tried": 75,
            "noticed": 45, "stable": 40, "seconds": 95.2, "peak_memory_mb": 210.5}  # fmt: skip


def _validate(stream: Stream, yard: Yard, whole: bool) -> Summary:
    statuses = ("valid", "gold_fails", "noop_passes", "infra")
    reasons = ("", "with its gold patch the row still fails: tests/t.py::test_a", "the row passes untouched",
               "the sandbox did not start: no space left on device")  # fmt: skip
    sides = {"valid": ("failed", "passed"), "gold_fails": ("failed", "failed"),
             "noop_passes": ("passed", "passed"), "infra": ("infra", "infra")}  # fmt: skip
    verdicts = {"passed": "passed", "failed": "failed", "infra": "infra_error"}
    for task, status, reason in list(zip(yard.tasks, statuses, reasons, strict=True))[: 4 if whole else 2]:
        noop, gold = ({"outcome": s, "verdicts": [verdicts[s]], "seconds": [0.5]} for s in sides[status])
        stream.add("task_validated", record={
            "id": f"RUN/{task.key}", "task_id": task.key, "content": "c" * 16, "run_id": "RUN", "time": 1.0,
            "status": status, "noop": noop, "gold": gold, "repeats": 1, "reason": reason,
        })  # fmt: skip
    progress(stream, "validated: 1 valid, 1 gold fails", 4 if whole else 2, 4)
    return {"dataset": "quickstart", "rows": 4, "valid": 1, "noop_passes": 1, "gold_fails": 1, "flaky": 0,
            "infra": 1, "quarantined": 2, "tests_value": 7, "tests_changed": 2, "tests_added": 1,
            "tests_without_mutant": 3, "seconds": 12.5}  # fmt: skip


def _import(stream: Stream, yard: Yard, whole: bool) -> Summary:
    progress(stream, "rows read", 4_000, 5_000)
    if whole:
        stream.add("alert", severity="warning", code="rows_rejected",
                   message="12 of 5000 rows could not be imported and are listed with the dataset; "
                   "the first: row 7 of rows.parquet, field 'patch': is empty")  # fmt: skip
    return {"dataset": "imported", "read": 5_000, "imported": 4_500, "rejected": 12, "duplicates": 40,
            "excluded": 448, "ungradable": 3, "tasks": 4_500, "excluded_decontamination:statement": 400,
            "excluded_statement:short": 48, "rejected_patch": 10, "rejected_instance_id": 2,
            "first_rejects": "row 7 of rows.parquet, field 'patch': is empty", "seconds": 31.4}  # fmt: skip


def _improve(stream: Stream, yard: Yard, whole: bool) -> Summary:
    for index in range(2 if whole else 1):
        stream.evaluation(index, tasks=(yard.tasks[3].key,))
        stream.add("iteration_started", iteration=index, policy_version=index, task_ids=[yard.tasks[0].key])
        for number in range(2):
            rollout(stream, ref(index, yard.tasks[0].key, number), "passed" if number else "failed")
        metrics = {"reward/mean": 0.5, "solve/rate": 0.5, "kept/trajectories": 1.0, "kept/tasks": 1.0,
                   "loss/value": 0.5, "time/rollout": 4.0, "time/update": 2.0}  # fmt: skip
        stream.checkpoint(index + 1)
        stream.add("iteration_finished", iteration=index, policy_version=index + 1, metrics=metrics)
    if whole:
        stream.evaluation(2, tasks=(yard.tasks[3].key,))
    return {"rounds": 2, "seconds": 60.0}


def _scored(tests: bool) -> Work:
    def work(stream: Stream, yard: Yard, whole: bool) -> Summary:
        for index, task in enumerate(yard.tasks[: 4 if whole else 2]):
            lost = index == 3
            score: dict[str, Any] = {"error": "the answer is neither YES nor NO" if lost else ""}
            if tests:
                score |= {} if lost else {"regression_passes": 5, "regression_tests": 6,
                                          "regression_status": "ran", "reproduction_passes": 1,
                                          "reproduction_tests": 2}  # fmt: skip
            else:
                score |= {"p_yes": None if lost else 0.25 * (index + 1)}
            score["resolved"] = not index % 2
            key = ref(0, task.key, 0)
            stream.add("trajectory_scored", source=yard.source, source_epoch=1, ref=key, score=score)
        progress(stream, "scored, 1 without a score", 4 if whole else 2, 4)
        counts = {"trajectories": 4, "scored": 3, "without_score": 1, "resolved": 2, "seconds": 9.0}
        if tests:
            return counts | {"tests": 6, "without_regression_tests": 0, "tests_kept": 2, "tests_toxic": 1}
        return counts | {"shortened": 0, "auc": 0.75, "within_task_auc": None, "ece": 0.125, "cost": None}

    return work


def _regraded(stream: Stream, yard: Yard, whole: bool) -> Summary:
    verdicts: tuple[tuple[str, str | None], ...] = (
        ("passed", "failed"), ("failed", "failed"), ("passed", "tampered"), ("failed", None),
    )  # fmt: skip
    pairs = list(zip(yard.tasks, verdicts, strict=False))
    for task, (old, new) in pairs[: 4 if whole else 2]:
        record: dict[str, Any] = {"old_verdict": old, "old_reward": float(old == "passed")}
        if new is None:
            record |= {"obstacle": "no_row", "detail": f"no row of 'toy' continues task {task.key}"}
        else:
            failed = ["tests/t.py::test_b"] if new == "failed" else []
            record |= {"verdict": new, "reward": 0.0, "detail": f"{len(failed)} of 3 tests failed",
                       "failed_tests": failed, "num_failed_tests": len(failed), "dataset": "quickstart",
                       "row": task.key, "content": "c" * 16}  # fmt: skip
        key = ref(0, task.key, 0)
        stream.add("trajectory_regraded", source=yard.source, source_epoch=1, ref=key, regrade=record)
    progress(stream, "graded again, 2 flips", 4 if whole else 2, 4)
    return {"trajectories": 4, "patches": 4, "regraded": 3, "lost": 0, "not_regraded": 1, "seconds": 9.0}


_WRITER = {"policy.checkpoint": "fresh:tiny", "agent.max_context": 2048, "agent.max_response": 512}
_JUDGE = {"policy.checkpoint": "fresh:tiny", "verifier.max_context": 2048}
KINDS: dict[str, _Kind] = {
    "train": _Kind("quickstart", _train, {"trainer.iterations": 3}),
    "evaluate": _Kind("quickstart-evaluate", _evaluate),
    "rollout": _Kind("quickstart-collect", _collect(("passed", "failed", "passed", None))),
    "oracle": _Kind("quickstart-oracle", _collect(("passed", "failed", "passed", None))),
    "write-tests": _Kind(
        "write-tests", _collect(("passed", "failed", "passed", None)), _WRITER
    ),
    "sft": _Kind("quickstart-sft", _stream_sft),
    "fine-tune": _Kind("quickstart-fine-tune", _fine_tune, reads="trajectories.runs"),
    "train-judge": _Kind(
        "train-judge", _fine_tune, {"trainer.start": "fresh:tiny"}, reads="judgements.on_policy[]"
    ),
    "curate": _Kind("quickstart-dataset", _curate, {"curation.output": "curated"}),
    "validate": _Kind("validate-dataset", _validate),
    "import": _Kind("import-dataset", _import),
    "improve": _Kind("quickstart-improve", _improve, {"improvement.rounds": 2}),
    "verify": _Kind(
        "verify", _scored(tests=False), _JUDGE, reads="verifier.runs[]"
    ),
    "regrade": _Kind("regrade", _regraded, reads="regrade.runs[]"),
    "verify-by-tests": _Kind("verify-by-tests", _scored(tests=True), reads="verifier.runs[]"),
}  # fmt: skip


def make_kind(name: str, ending: str = "succeeded", **overrides: Any) -> Run:
    """Create a run of a kind in a state; see the module."""
    kind = KINDS[name]
    yard = _yard(reads=bool(kind.reads))
    given = {"name": f"{name} {ending}", **kind.overrides, **overrides}
    if kind.reads:
        given[kind.reads.removesuffix("[]")] = [
            yard.source if kind.reads.endswith("[]") else int(yard.source)
        ]
    if name == "import":
        folder = Path(settings.TRAINYARD_HOME) / "imports"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rows.jsonl").write_text("{}\n")
        given |= {
            "importing.source": "rows.jsonl",
            "importing.output": "imported",
            "importing.format": "swe-bench",
        }
    run, claim = launched(runs.create(recipe=kind.recipe, overrides=given))
    stream = Stream(epoch=claim.epoch)
    stream.started(total=2 if name == "improve" else run.total_iterations)
    summary = kind.work(stream, yard, ending == "succeeded")
    if ending == "paused":
        stream.add("run_paused")
    elif ending != "running":
        done = summary if ending == "succeeded" else {}
        stream.add("run_finished", state=ending, reason=REASONS.get(ending, ""), summary=done)
    stream.lines = [line.replace(b"RUN", str(run.pk).encode()) for line in stream.lines]
    post(claim, stream)
    if ending == "succeeded" and name in ("curate", "import"):
        Dataset.objects.update_or_create(name=summary["dataset"], defaults={"run": run})
    run.refresh_from_db()
    return run


def _yard(*, reads: bool) -> Yard:
    tasks = list(Task.objects.filter(dataset__name="quickstart").order_by("position"))
    if not tasks:
        _, tasks = make_dataset()
    yard = Yard(tasks)
    if reads:
        source, claim = launched(runs.create(recipe="quickstart-collect", overrides={"name": "source"}))
        stream = Stream(epoch=claim.epoch)
        stream.started(total=1)
        _collect(("passed", "failed", "passed", "failed"))(stream, yard, True)
        stream.add("run_finished", state="succeeded")
        post(claim, stream)
        yard.source = str(source.pk)
        (Path(settings.TRAINYARD_HOME) / "runs" / yard.source).mkdir(parents=True, exist_ok=True)
    return yard
