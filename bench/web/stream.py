"""Events of training runs, as their engines write them, derived from a seed.

Texts are pieces of the Python standard library's source and sentences about it, so that sizes, compression
and words to search for are like those of real rollouts. A step is about 1.3 kB.
"""

from __future__ import annotations

import gzip
import json
import random
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count, islice
from pathlib import Path

from engine.events.delivery.shipper import MAX_EVENTS

SIZE = 8
"""Siblings of a group."""
GROUPS = 64
"""Groups of an iteration."""
AT_ONCE = 2
"""Groups whose rollouts are live at the same time."""
HELDOUT_TASKS = 32
T0 = 1_790_000_000.0
_METRICS = ("reward/mean", "solve/rate", "steps/mean", "tokens/response_mean", "loss/value", "entropy/mean")
_TEXTS = 4_000
_SENTENCES = (
    "The {0} in {1} compares with the wrong operator, so the last {2} is lost.",
    "First look at how {0} is called from {1}, then reproduce the failure of {2}.",
    "The traceback ends in {0}; maybe {1} returns None when {2} is empty.",
    "Now run the tests of {0} again and check the edge cases of {1} and {2}.",
    "I should not change {0}: {1} relies on it, and {2} documents the behaviour.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A run to post: its rollouts follow from its number."""

    name: str
    number: int
    iterations: int
    tasks: int
    """Tasks of the dataset."""
    groups: int = GROUPS
    ends: bool = True

    @property
    def num_trajectories(self) -> int:
        """Return the number of training rollouts."""
        return self.iterations * self.groups * SIZE


def task_key(number: int) -> str:
    """Return the key of a task of the dataset."""
    return f"k{number:015x}"


@dataclass(frozen=True, slots=True)
class _Texts:
    """Fields of events as JSON."""

    steps: tuple[str, ...]
    patches: tuple[str, ...]
    tests: tuple[str, str]
    """Of a rollout that failed, and of one that passed."""


@cache
def _texts() -> _Texts:
    rng = random.Random(0)
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    code = "\n".join(path.read_text(errors="replace") for path in sources[:120])
    lines = code.splitlines()
    names = sorted({word for word in code.split() if word.isidentifier() and len(word) > 5})[:3_000]
    steps = []
    for _ in range(_TEXTS):
        thought = " ".join(
            rng.choice(_SENTENCES).format(*rng.sample(names, 3)) for _ in range(rng.randint(1, 4))
        )
        at = rng.randrange(len(lines) - 200)
        numbered = enumerate(lines[at : at + min(120, int(rng.lognormvariate(2.6, 0.8)))], start=at)
        observation = "\n".join(f"{number:>6}\t{line}" for number, line in numbered)
        path = rng.choice(sources).name
        tool, arguments = rng.choice(
            (
                ("execute_bash", {"command": f"sed -n '{at},+20p' Lib/{path} | grep -n {rng.choice(names)}"}),
                ("execute_bash", {"command": f"python -m pytest tests/test_{path} -k {rng.choice(names)}"}),
                ("search", {"search_term": rng.choice(names), "path": f"/testbed/{path}"}),
                ("file_editor", {"command": "view", "path": f"/testbed/{path}"}),
                ("file_editor", {"command": "str_replace", "path": f"/testbed/{path}",
                                 "old_str": lines[at], "new_str": f"{lines[at]}  # {rng.choice(names)}"}),
            )
        )  # fmt: skip
        fields = {
            "thought": thought, "response": f"<think>\n{thought}\n</think>\n<function={tool}>", "tool": tool,
            "arguments": arguments, "observation": observation, "exit_code": rng.choice((0, 0, 0, 1)),
            "generated_tokens": len(thought) // 4, "thinking_tokens": len(thought) // 5,
            "prompt_tokens": 4_000, "model_seconds": 2.5, "tool_seconds": 0.3,
        }  # fmt: skip
        steps.append(json.dumps(fields)[1:-1])
    patches = []
    for number in range(200):
        path, at = rng.choice(sources).name, rng.randrange(len(lines) - 200)
        body = "".join(f" {line}\n" for line in lines[at : at + 6])
        change = f"-{lines[at + 6]}\n+{lines[at + 6]}  # {rng.choice(names)}\n"
        head = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
        patches.append(json.dumps(f"{head}@@ -{number + 1},7 +{number + 1},7 @@\n{body}{change}"))
    tests = tuple(
        json.dumps([
            {"test_id": f"tests/test_unit.py::test_{n}", "seconds": 0.1,
             "kind": "fail_to_pass" if n < 2 else "pass_to_pass",
             "outcome": "failed" if n == 0 and not passed else "passed"}
            for n in range(8)
        ])
        for passed in (False, True)
    )  # fmt: skip
    return _Texts(tuple(steps), tuple(patches), (tests[0], tests[1]))


def events(plan: RunPlan, *, epoch: int = 1) -> Iterator[str]:
    """Yield the events of a run as lines of JSON, numbered from 1."""
    rng = random.Random(plan.number)
    for seq, body in zip(count(1), _bodies(plan, rng), strict=False):
        yield f'{{"seq":{seq},"epoch":{epoch},"time":{T0 + 86_400 * plan.number + 0.02 * seq:.2f},{body}}}'


def _bodies(plan: RunPlan, rng: random.Random) -> Iterator[str]:
    yield f'"type":"run_started","host":"bench","pid":1,"total_iterations":{plan.iterations}'
    for iteration in range(plan.iterations):
        if iteration in (0, plan.iterations // 2):
            yield from _evaluation(plan, iteration, rng)
        keys = [task_key((iteration * plan.groups + n) * 31 % plan.tasks) for n in range(plan.groups)]
        yield _event(type="iteration_started", iteration=iteration, policy_version=iteration, task_ids=keys)
        for at in range(0, len(keys), AT_ONCE):
            yield from _rollouts("train", iteration, keys[at : at + AT_ONCE], rng, mean_steps=50)
        yield _event(
            type="iteration_finished", iteration=iteration, policy_version=iteration + 1,
            metrics=dict.fromkeys((*_METRICS, *(f"time/part_{n}" for n in range(60))), rng.random()),
        )  # fmt: skip
    if plan.ends:
        yield '"type":"run_finished","state":"succeeded"'


def _evaluation(plan: RunPlan, iteration: int, rng: random.Random) -> Iterator[str]:
    keys = [task_key(n * 17 % plan.tasks) for n in range(min(HELDOUT_TASKS, plan.groups))]
    for at in range(0, len(keys), AT_ONCE):
        yield from _rollouts("eval:heldout", iteration, keys[at : at + AT_ONCE], rng, mean_steps=20)
    rate = 0.2 + 0.2 * rng.random()
    yield _event(
        type="evaluation_finished", iteration=iteration, name="heldout", policy_version=iteration,
        num_samples=SIZE * len(keys), num_tasks=len(keys), num_solved=len(keys) // 3, solve_rate=rate,
        interval_low=rate - 0.1, interval_high=rate + 0.1,
    )  # fmt: skip


def _rollouts(
    phase: str, iteration: int, keys: list[str], rng: random.Random, *, mean_steps: int
) -> Iterator[str]:
    """Yield the rollouts of groups, their steps in turns."""
    texts = _texts()
    refs, left, spent = [], [], []
    for key in keys:
        skill = rng.random() ** 2
        for index in range(SIZE):
            refs.append(
                f'"ref":{{"iteration":{iteration},"phase":"{phase}","task_id":"{key}","index":{index}}}'
            )
            left.append(rng.randint(mean_steps // 5 * 2, mean_steps // 5 * 8))
            spent.append(rng.random() < skill)
    for ref in refs:
        yield f'"type":"trajectory_started","sandbox_id":"local",{ref}'
    for index in range(max(left)):
        for number, ref in enumerate(refs):
            if index < left[number]:
                fields = texts.steps[int(rng.random() * _TEXTS)]
                yield f'"type":"step_finished","index":{index},{ref},{fields}'
            elif index == left[number]:
                yield _end(ref, passed=spent[number], steps=index, rng=rng)
    for number, ref in enumerate(refs):
        if left[number] == max(left):
            yield _end(ref, passed=spent[number], steps=left[number], rng=rng)
    if phase != "train":
        return
    for number, key in enumerate(keys):
        passed = spent[number * SIZE : (number + 1) * SIZE]
        members = []
        for index in range(SIZE):
            baseline = (sum(passed) - passed[index]) / (SIZE - 1)
            members.append({"index": index, "advantage": passed[index] - baseline, "baseline": baseline,
                            "loss_mask": True})  # fmt: skip
        yield _event(type="group_finished", iteration=iteration, phase=phase, task_id=key, members=members)


def _end(ref: str, *, passed: bool, steps: int, rng: random.Random) -> str:
    texts = _texts()
    reason = "submitted" if passed or rng.random() < 0.8 else rng.choice(("max_steps", "max_context"))
    verdict = "passed" if passed else "failed"
    return (
        f'"type":"trajectory_finished",{ref},"termination":"{reason}","verdict":"{verdict}",'
        f'"reward":{float(passed)},"num_steps":{steps},"patch":{rng.choice(texts.patches)},'
        f'"tests":{texts.tests[passed]},"prompt_tokens":{4_000 * steps},"generated_tokens":{60 * steps},'
        f'"thinking_tokens":{45 * steps},"model_seconds":{2.5 * steps},"total_seconds":{3.0 * steps}'
    )


def _event(**fields: object) -> str:
    return json.dumps(fields)[1:-1]


def batches(lines: Iterator[str], size: int = MAX_EVENTS) -> Iterator[bytes]:
    """Yield compressed bodies of ``size`` events, by default as the engine's shipper sends them."""
    while batch := list(islice(lines, size)):
        yield gzip.compress("\n".join(batch).encode(), 1)
