"""Rows of the filled database besides those of runs: tasks, validations, hits, labels, an experiment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.web.stream import SIZE, task_key

DATASET = "big"
TRACED = 65_536
"""Sampled tokens of the traced trajectory."""
_VALIDATIONS = """INSERT INTO webapp_validation (task_id, uid, content, run_label, time, status, noop, gold,
        repeats, noop_seconds, gold_seconds, flaky_tests, num_flaky_tests, reason, quarantine, sides)
    SELECT t.id, 'u' || r, t.content, 'bench', now() - r * interval '1 day',
        CASE t.position % 20 WHEN 0 THEN 'flaky' WHEN 1 THEN 'gold_fails' ELSE 'valid' END, 'failed',
        CASE t.position % 20 WHEN 0 THEN 'flaky' WHEN 1 THEN 'failed' ELSE 'passed' END, 3,
        0.2 + t.position % 37, 0.3 + t.position % 41, '["tests/t.py::test_a"]', 1, 'reason', true,
        '{"noop": {"verdicts": ["failed"]}, "gold": {"verdicts": ["passed"]}}'
    FROM webapp_task t, generate_series(1, 3) r"""
_SCANS = """UPDATE webapp_scan SET fingerprint = %s, versions = %s, found = hit.found, hits = hit.hits::jsonb
    FROM (VALUES (0, ARRAY['ran_project_tests', 'edited_tests'], %s), (1, ARRAY['ran_project_tests'], %s),
        (2, ARRAY[]::varchar[], '{}')) AS hit(kind, found, hits)
    WHERE fingerprint <> %s AND hit.kind = CASE WHEN trajectory_id %% 9 = 0 THEN 0
        WHEN trajectory_id %% 3 = 0 THEN 1 ELSE 2 END"""
_LABELS = """INSERT INTO webapp_annotation (trajectory_id, step_index, kind, text, created_at)
    SELECT id, CASE WHEN id % 2 = 0 THEN 3 END, 'label', CASE id % 3 WHEN 0 THEN 'look again' ELSE 'nice' END,
        now() FROM webapp_trajectory WHERE id % 50 = 0 ON CONFLICT DO NOTHING"""


def make_dataset(tasks: int) -> None:
    """Store the dataset with its tasks, answers and validations."""
    from django.db import connection

    from webapp.datasets.services.datasets import store_tasks
    from webapp.datasets.services.health import refresh_standings
    from webapp.models import Dataset, Task

    words = ("parser", "encoding", "timeout", "iterator", "locale", "archive", "socket", "header")

    def rows() -> Iterator[dict[str, Any]]:
        for number in range(tasks):
            word, other = words[number % 8], words[number // 8 % 8]
            yield {
                "id": task_key(number), "instance_id": f"repo__{word}-{number}", "split": "train",
                "repo": f"org/{other}", "base_commit": "c", "image": "image", "workdir": "/testbed",
                "problem_statement": f"The {word} fails with a {other} number {number}. {'Words. ' * 100}",
                "difficulty": {}, "metadata": {},
            }  # fmt: skip

    dataset = Dataset.objects.create(name=DATASET)
    answers = (
        {"id": task_key(number), "gold_patch": "", "fail_to_pass": [], "pass_to_pass": []}
        for number in range(tasks)
    )
    store_tasks(dataset=dataset, tasks=rows(), answers=answers, provenance={})
    with connection.cursor() as cursor:
        cursor.execute(_VALIDATIONS)
    refresh_standings(task_ids=list(Task.objects.values_list("pk", flat=True)))


def complete(runs: dict[str, tuple[int, str]]) -> None:
    """Store hits, labels, the index of words, and an experiment of the arms; update statistics of tables."""
    from django.db import connection

    from webapp.experiments.designs import Arm, Design
    from webapp.models import Experiment, Run
    from webapp.rollouts.selectors import scans
    from webapp.rollouts.services import passages

    versions, fingerprint = scans.current_versions(), scans.fingerprint()
    hits = [json.dumps({name: {"count": 1, "first": [[2, "x"]]} for name in names})
            for names in (("ran_project_tests", "edited_tests"), ("ran_project_tests",))]  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(_SCANS, [fingerprint, json.dumps(versions), *hits, fingerprint])
        cursor.execute(_LABELS)
        cursor.execute("SET synchronous_commit = off")
    while passages.index_pending():
        pass
    design = Design(recipe="quickstart", arms=(Arm(name="arm 0"), Arm(name="arm 1")), seeds=(0, 1, 2, 3))
    experiment, _ = Experiment.objects.get_or_create(
        name="two arms", defaults={"design": design.model_dump(mode="json")}
    )
    for name, (number, _) in runs.items():
        if name.startswith("arm"):
            run = Run.objects.get(pk=number)
            run.config["seed"] = int(name[-1])
            run.experiment, run.arm = experiment, name[:5]
            run.save(update_fields=["experiment", "arm", "config"])
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def traced_events() -> Iterator[str]:
    """Yield the events of a run with one group, whose first rollout has a trace of ``TRACED`` tokens."""
    from engine.events.token_block import TokenBlock
    from engine.events.token_trace import TraceBlock, TraceRecord
    from engine.events.types import EVENT_ADAPTER
    from engine.tokens import TokenRecord

    rng = np.random.default_rng(0)
    steps = 64
    ids = rng.zipf(1.3, TRACED).clip(max=30_000)
    logprobs = -rng.exponential(0.7, TRACED).astype(np.float32)
    tokens = TokenRecord(
        ids=ids, mask=np.ones(TRACED, bool), logprobs=logprobs, versions=np.zeros(TRACED, np.int32),
        steps=np.repeat(np.arange(steps), TRACED // steps),
    )  # fmt: skip
    texts = {int(token): f" word{token}" for token in set(ids.tolist())}
    drift = rng.normal(0, 0.05, TRACED).astype(np.float32)
    trace = TraceRecord(
        logprobs=(logprobs + drift).clip(max=0), entropies=rng.exponential(0.5, TRACED).astype(np.float32),
        texts=texts,
    )  # fmt: skip
    refs = [{"iteration": 0, "phase": "train", "task_id": task_key(0), "index": n} for n in range(SIZE)]
    lines: list[dict[str, Any]] = [
        {"type": "run_started", "host": "bench", "pid": 1, "total_iterations": 1},
        {"type": "iteration_started", "iteration": 0, "policy_version": 0, "task_ids": [task_key(0)]},
    ]
    for index, ref in enumerate(refs):
        lines.append({"type": "trajectory_started", "ref": ref, "sandbox_id": "local"})
        for step in range(steps if index == 0 else 2):
            lines.append({
                "type": "step_finished", "ref": ref, "index": step, "thought": f"thought {step}",
                "response": f"thought {step}", "tool": "execute_bash", "arguments": {"command": "ls"},
                "observation": "a.py", "generated_tokens": TRACED // steps,
            })  # fmt: skip
        lines.append({
            "type": "trajectory_finished", "ref": ref, "termination": "submitted",
            "verdict": "passed" if index == 0 else "failed", "reward": float(index == 0), "num_steps": 2,
            "patch": "", "tokens": TokenBlock.of(tokens) if index == 0 else None,
        })  # fmt: skip
    members = [{"index": n, "advantage": 1.0 if n == 0 else -1 / 7, "baseline": 0.0, "loss_mask": True}
               for n in range(SIZE)]  # fmt: skip
    lines += [
        {"type": "group_finished", "iteration": 0, "phase": "train", "task_id": task_key(0),
         "members": members},
        {"type": "trajectory_trained", "ref": refs[0], "iteration": 0, "step": 0, "losses": [0.02],
         "weight": 1 / TRACED, "tokens": TraceBlock.of(trace)},
        {"type": "iteration_finished", "iteration": 0, "policy_version": 1, "metrics": {"loss/value": 0.02}},
        {"type": "run_finished", "state": "succeeded"},
    ]  # fmt: skip
    for seq, line in enumerate(lines, start=1):
        event = EVENT_ADAPTER.validate_python(line | {"seq": seq, "epoch": 1, "time": 1.79e9 + seq})
        yield event.model_dump_json()
