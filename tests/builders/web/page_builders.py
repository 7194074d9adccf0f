"""Builders for pages: a dataset, an experiment, and a training run with data of every kind.

Rows of runs come from real events through the ingestion service. Every text that a model, a person or a
sandbox could have written contains ``mark``, so that tests can look for it unescaped.
"""
# ruff: noqa: E501  (tables of literal rows)

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from tests.builders.web.event_builders import Stream
from tests.builders.web.web_builders import launched, post
from webapp.experiments import services as experiments
from webapp.models import Dataset, Experiment, QuarantineDecision, Run, Task, TaskAnswer, Validation
from webapp.runs.services import attempts, runs

PATCH = """\
diff --git a/boltons/iterutils.py b/boltons/iterutils.py
--- a/boltons/iterutils.py
+++ b/boltons/iterutils.py
@@ -314,5 +314,5 @@ def chunked(src, size):
     lo = 0
     hi = len(src)
-    while lo <= hi:  # MARK
+    while lo < hi:
         yield src[lo : lo + size]
         lo += size
"""
REASONS = (
    "submitted",
    "submitted",
    "max_steps",
    "submitted",
    "env_error",
    "submitted",
    "max_context",
    "submitted",
)


@dataclass(slots=True)
class Yard:
    """Objects created by ``make_yard``."""

    run: Run
    claim: attempts.Claim
    stream: Stream
    posted: int
    """Number of ingested lines of the stream."""
    dataset: Dataset
    tasks: list[Task]
    experiment: Experiment
    mark: str
    group_size: int
    iterations: int
    """Finished iterations; the live rollout is in the next one."""

    def ref(self, iteration: int, task: int, index: int, phase: str = "train") -> dict[str, object]:
        """Return the key of a trajectory."""
        return {"iteration": iteration, "phase": phase, "task_id": self.tasks[task].key, "index": index}

    def post(self) -> None:
        """Ingest the new events of the stream."""
        post(self.claim, self.stream, self.posted)
        self.posted = len(self.stream.lines)
        self.run.refresh_from_db()


def make_dataset(name: str = "quickstart", tasks: int = 4, mark: str = "") -> tuple[Dataset, list[Task]]:
    """Create a dataset of tasks with answers."""
    dataset, _ = Dataset.objects.get_or_create(name=name)
    dataset.splits, dataset.num_tasks = {"train": tasks}, tasks
    dataset.provenance = {"sources": [{"package": f"boltons {mark}", "tasks": tasks}], "hint": "line"}
    dataset.save()
    rows = []
    for position in range(tasks):
        row = Task.objects.create(
            dataset=dataset, key=f"{name[:4]}{position:012x}", instance_id=f"boltons__iterutils-{position}{mark}", split="train",
            position=position, repo=f"mahmoud/boltons{mark}", base_commit="25.0.0", image="local:boltons",
            workdir="/testbed", difficulty={"function_lines": 12.0, "num_tests": 3.0},
            problem_statement=f"boltons/iterutils.py: `chunked` (lines 310-322) is broken. {mark}\n"
            "line 316: `while lo <= hi:`\nFailing: tests/test_iterutils.py::test_chunked (AssertionError)",
        )  # fmt: skip
        TaskAnswer.objects.create(
            task=row, gold_patch=PATCH.replace("MARK", mark or "gold"), fail_to_pass=[f"tests/t.py::test_a{mark}"],
            pass_to_pass=["tests/t.py::test_b"], test_command=f"pytest {mark}", grade_rule="f2p_p2p",
            deterministic=True, test_files={f"tests/t{mark}.py": "x"},
        )  # fmt: skip
        rows.append(row)
    add_health(rows[0], mark)
    return dataset, rows


def add_health(task: Task, mark: str) -> None:
    """Add a flaky validation of a task, and the decision to quarantine it."""
    time = datetime(2026, 11, 21, 10, tzinfo=UTC)
    side = {
        "outcome": "flaky",
        "verdicts": ["passed", "failed"],
        "seconds": [1.0, 2.0],
        "detail": f"lost {mark}",
    }
    validation = Validation.objects.create(
        task=task, uid="1", run_label=f"elsewhere{mark}"[:100], time=time, status="flaky", noop="failed", gold="flaky",
        repeats=2, noop_seconds=0.4, gold_seconds=1.5, flaky_tests=[f"tests/t.py::test_a{mark}"], num_flaky_tests=1,
        reason=f"flaky tests: test_a{mark}", sides={"noop": {**side, "verdicts": ["failed"] * 2}, "gold": side},
    )  # fmt: skip
    QuarantineDecision.objects.create(
        task=task, uid="2", time=time, quarantined=True, reason=f"leaks {mark}", by=f"ada{mark}"
    )
    task.validation, task.health, task.quarantined = validation, "flaky", True
    task.quarantine_reason, task.quarantine_by, task.quarantine_since = f"leaks {mark}", f"ada{mark}", time
    task.save()


def add_steps(yard: Yard, ref: dict[str, object], steps: int) -> None:
    """Add a view, edits, commands, a search, an unparsable response, and a submission."""
    mark = yard.mark
    kinds = [
        ("file_editor", {"command": "view", "path": f"/testbed/boltons/iterutils.py{mark}", "view_range": [310, 322]},
         "\n".join(f"{n:>5}  line of code {mark}" for n in range(310, 323))),
        ("file_editor", {"command": "str_replace", "path": "/testbed/boltons/iterutils.py",
                         "old_str": f"while lo <= hi: {mark}", "new_str": f"while lo < hi: {mark}"}, "ok"),
        ("execute_bash", {"command": f"python -m pytest -q tests {mark}"}, f"1 failed {mark}\n" + "x\n" * 250),
        ("search", {"search_term": f"chunked{mark}", "path": "."}, f"Matches for chunked {mark}"),
        ("", {}, ""),
        ("strange_tool", {"what": f"is this {mark}"}, f"no such tool {mark}"),
    ]  # fmt: skip
    for index in range(steps):
        last = index == steps - 1
        tool, arguments, observation = kinds[index % len(kinds)]
        if last:
            tool, arguments, observation = "finish", {"command": "submit", "result": f"done {mark}"}, ""
        yard.stream.step(
            ref, index, tool=tool, arguments=arguments, observation=observation, done=last,
            thought=f"line 316: comparison {mark} number {index}", thinking_tokens=4 + 7 * (index % 3),
            response=f"<think>\nline 316 {mark}\n</think>\n<function={tool}>", generated_tokens=30 + index,
            exit_code=1 if tool == "execute_bash" else None, error="" if tool or last else f"no call {mark}",
            truncated_chars=120 if tool == "execute_bash" else 0, model_seconds=0.4, tool_seconds=0.02 * index,
        )  # fmt: skip


def add_trajectory(
    yard: Yard, ref: dict[str, object], *, reward: float | None, reason: str, steps: int = 7
) -> None:
    """Add a whole rollout."""
    mark, passed = yard.mark, bool(reward)
    yard.stream.add("trajectory_started", ref=ref, sandbox_id=f"sb-{mark}")
    add_steps(yard, ref, steps)
    verdict = None if reward is None else "passed" if passed else "failed"
    yard.stream.add(
        "trajectory_finished", ref=ref, termination=reason, verdict=verdict, reward=reward, num_steps=steps,
        patch=PATCH.replace("MARK", mark or "x") if reward is not None else "",
        tests=[
            {"test_id": f"tests/t.py::test_a{mark}", "kind": "fail_to_pass", "outcome": "passed" if passed else "failed", "seconds": 0.2},
            {"test_id": "tests/t.py::test_b", "kind": "pass_to_pass", "outcome": "passed", "seconds": 0.1},
        ] if reward is not None else [],
        test_log=f"collected 2 items {mark}", detail=f"1 of 2 failed {mark}" if not passed else "",
        error=f"the sandbox died {mark}" if reward is None else "", prompt_tokens=100 * steps,
        generated_tokens=34 * steps, thinking_tokens=11 * steps, policy_version_min=1, policy_version_max=2,
        opening=[{"role": "system", "content": f"You fix code. {mark}"}, {"role": "user", "content": f"Fix it. {mark}"}],
        prompt=f"deepswe_v1{mark}"[:64], prompt_hash="0123456789abcdef",
        queue_seconds=0.1, sandbox_seconds=0.05, model_seconds=2.5, tool_seconds=0.4, grading_seconds=1.1,
        total_seconds=4.2,
    )  # fmt: skip


def add_group(yard: Yard, iteration: int, task: int, solved: int) -> None:
    """Add a finished group in which the first ``solved`` submitted siblings pass."""
    rewards: list[float | None] = []
    for index in range(yard.group_size):
        reason = REASONS[index % len(REASONS)]
        reward = (
            None
            if reason == "env_error"
            else 1.0
            if len([r for r in rewards if r]) < solved and reason == "submitted"
            else 0.0
        )
        rewards.append(reward)
        add_trajectory(
            yard, yard.ref(iteration, task, index), reward=reward, reason=reason, steps=3 + (index + task) % 5
        )
    members = []
    kept = [
        (i, r) for i, r in enumerate(rewards) if r is not None and REASONS[i % len(REASONS)] == "submitted"
    ]
    for index, reward in enumerate(rewards):
        others = [r for i, r in kept if i != index]
        mask = (index, reward) in kept and len(others) > 0
        baseline = sum(others) / len(others) if mask else None
        members.append({
            "index": index, "advantage": (reward or 0.0) - baseline if baseline is not None else None, "baseline": baseline,
            "loss_mask": mask, "mask_reason": "" if mask else "infrastructure" if reward is None else REASONS[index % len(REASONS)],
        })  # fmt: skip
    yard.stream.add(
        "group_finished", iteration=iteration, phase="train", task_id=yard.tasks[task].key, members=members
    )


def metrics_of(iteration: int) -> dict[str, float]:
    """Return metrics as the trainer reports them."""
    share = min(0.9, 0.1 + 0.08 * iteration)
    return {
        "reward/mean": share, "solve/rate": share, "solve/none": 0.9 - share, "solve/partial": 0.1,
        "solve/all": share, "steps/mean": 4.0 + 0.1 * iteration, "tokens/response_mean": 180.0 - iteration,
        "tokens/thinking_per_step": 11.0 + iteration, "termination/submitted": 0.7, "termination/max_steps": 0.2,
        "termination/env_error": 0.1, "time/rollout": 9.0, "time/grading": 3.0, "time/update": 4.0,
        "loss/value": 0.02 - 0.001 * iteration, "clip/high": 0.01, "clip/low": 0.004, "grad/norm": 0.8, "entropy/mean": 0.6,
        "loop/held_p50_ms": 0.4, "loop/held_p99_ms": 9.0, "loop/held_p999_ms": 31.0, "loop/held_max_ms": 40.0 + iteration,
    }  # fmt: skip


def timeline_of(yard: Yard, iteration: int, task: int = 0) -> dict[str, object]:
    """Return a timeline whose straggler is rollout 1 of a task, without waits for a queue place."""
    most = {
        "iteration": iteration,
        "task_id": yard.tasks[task].key,
        "index": 1,
        "start": 1.0,
        "end": 8.0,
        "seconds": 6.5,
    }
    spans = {
        "engines": [[1.0, 4.0], [5.0, 9.0]],
        "trainer": [[9.0, 12.0]],
        "place": [],
        "sandbox": [[0.0, 2.0]],
        "grading": [[4.0, 9.0]],
    }
    return {"seconds": 12.0, "lanes": [
        {"name": name, "spans": intervals, "seconds": sum(end - start for start, end in intervals), "rollout_seconds": 0 if name == "trainer" else 18.0,
         "costliest": most if intervals else None}
        for name, intervals in spans.items()
    ]}  # fmt: skip


def add_iteration(yard: Yard, iteration: int, *, groups: int = 2, finish: bool = True) -> None:
    """Add an iteration with its groups, metrics and checkpoint."""
    keys = [yard.tasks[(iteration + i) % len(yard.tasks)].key for i in range(groups)]
    yard.stream.add("iteration_started", iteration=iteration, policy_version=iteration, task_ids=keys)
    for i in range(groups):
        add_group(yard, iteration, (iteration + i) % len(yard.tasks), solved=(iteration + i) % 4)
    if finish:
        yard.stream.add(
            "iteration_finished",
            iteration=iteration,
            policy_version=iteration + 1,
            metrics=metrics_of(iteration),
            timeline=timeline_of(yard, iteration, iteration % len(yard.tasks)),
        )
        yard.stream.add(
            "checkpoint_saved", iteration=iteration + 1, policy_version=iteration + 1,
            path=f"checkpoints/{iteration + 1:05d}{yard.mark}", checksum="ab" * 32,
        )  # fmt: skip


def add_evaluation(yard: Yard, iteration: int, solved: int) -> None:
    """Add a held-out evaluation with one group."""
    ref = yard.ref(iteration, 0, 0, phase="eval:heldout")
    add_trajectory(yard, ref, reward=float(solved > 8), reason="submitted", steps=3)
    yard.stream.add(
        "evaluation_finished", iteration=iteration, name="heldout", policy_version=iteration, num_samples=16,
        num_tasks=4, num_solved=solved, solve_rate=solved / 16, interval_low=max(0, solved - 4) / 16,
        interval_high=min(16, solved + 4) / 16,
        pass_at_k=[{"k": 4, "rate": 0.875, "interval_low": 0.75, "interval_high": 0.96875}],
    )  # fmt: skip


def make_yard(
    *, mark: str = "", iterations: int = 3, group_size: int = 8, name: str = "quickstart training"
) -> Yard:
    """Create a running training run with finished iterations, evaluations, an alert and a live rollout."""
    dataset, tasks = make_dataset(mark=mark)
    experiment = experiments.create(name=f"first {mark}", goal=f"why {mark}")
    draft = runs.create(
        recipe="quickstart",
        overrides={
            "name": f"{name} {mark}".strip()[:200],
            "trainer.iterations": 8,
            "algorithm.filtered_baseline": "drop",
        },
        experiment=experiment,
    )
    run, claim = launched(draft)
    yard = Yard(
        run, claim, Stream(epoch=claim.epoch), 0, dataset, tasks, experiment, mark, group_size, iterations
    )
    yard.stream.started(total=8)
    add_evaluation(yard, 0, 3)
    for iteration in range(iterations):
        add_iteration(yard, iteration)
    add_evaluation(yard, iterations, 11)
    yard.stream.add(
        "alert", severity="warning", code=f"entropy/low{mark}", message=f"entropy fell {mark}", iteration=0
    )
    yard.stream.add(
        "iteration_started", iteration=iterations, policy_version=iterations, task_ids=[tasks[0].key]
    )
    live = yard.ref(iterations, 0, 0)
    yard.stream.add("trajectory_started", ref=live, sandbox_id="sb-live")
    add_live_step(yard, iterations, 0)
    yard.post()
    return yard


def add_live_step(yard: Yard, iteration: int, index: int) -> None:
    """Add a step to the live rollout of task 0."""
    yard.stream.step(
        yard.ref(iteration, 0, 0), index, tool="execute_bash", thought=f"look {index} {yard.mark}",
        arguments={"command": f"sed -n {index}p a.py {yard.mark}"}, observation=f"line {index} {yard.mark}",
        exit_code=0, thinking_tokens=5 + index, generated_tokens=20,
    )  # fmt: skip
