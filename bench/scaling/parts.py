"""Runs of the bench of test-time scaling: recipes, sizes and dependencies."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from bench.runs import configured, finish_run, is_finished, run_name
from bench.scaling.teacher import lesson, write_lessons
from engine.config.learning.improvement import ImprovementConfig
from engine.config.recipes.quickstart import AGENT
from engine.datasets.store import dataset_path, load_dataset
from engine.events.delivery.spool import SPOOL_NAME
from engine.events.stored_trajectories import TRAJECTORIES_FILE, write_trajectories
from engine.orchestrator.improvement.kept import choose_kept, read_kept
from engine.types import TaskRow

PATIENT = {"rollout_timeout_s": 1800.0, "command_timeout_s": 60.0}
"""Time limits that even a busy machine does not reach."""
ACTING = {
    **{f"agent.{name}": value for name, value in PATIENT.items()},
    "rollout.max_concurrent": 16,
    "grading.timeout_s": 120.0,
    "grading.counterfactual": "off",
}
"""Settings of the policy's rollouts; without audits, as the policy forges no tests."""
SANDBOX = {"sandbox.memory_mb": 256, "sandbox.disk_mb": 64}
WRITER = AGENT.model_copy(update={"prompt": "reproduction_compact_v1", **PATIENT}).model_dump(mode="json")
"""Testing agent: the quickstart's agent with another prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes of the bench's parts."""

    dataset: str = "quickstart-scaling"
    packages: int | None = None
    """Number of the quickstart's packages; None takes all."""
    train_tasks: int = 64
    heldout_tasks: int = 32
    evaluated_tasks: int = 32
    """Number of held-out tasks to roll out, from the first on."""
    iterations: int = 8
    """Iterations of the policy's training."""
    train_rollouts: int = 8
    """Rollouts per training task to train judges on, besides those of the policy's training."""
    rollouts: int = 16
    """Rollouts of each held-out task: the largest K."""
    tests: int = 2
    """Testing agents for each held-out task."""
    agent_epochs: int = 12
    judge_epochs: int = 4
    pairs_per_task: int = 4
    judge_rate: float = 3e-4
    part: Literal["trajectory", "patch"] = "patch"
    """Part of a rollout that the judge reads."""


QUICK = Scale(
    dataset="quickstart-scaling-quick",
    packages=1,
    train_tasks=4,
    heldout_tasks=2,
    evaluated_tasks=2,
    iterations=1,
    train_rollouts=4,
    rollouts=4,
    tests=1,
    agent_epochs=1,
    judge_epochs=1,
)
"""Sizes of a smoke test, whose numbers are meaningless."""


class Parts:
    """Parts of the bench, each run unless finished.

    Args:
        home: the data folder.
        scale: sizes.
    """

    def __init__(self, home: Path, scale: Scale) -> None:
        self.home = home
        self.scale = scale

    def folder(self, name: str) -> Path:
        """Return the folder of a run."""
        return self.home / "runs" / name

    @cached_property
    def dataset(self) -> str:
        """Create the tasks; return the dataset's name."""
        scale = self.scale
        config = configured("quickstart-dataset", {})
        sources = config["curation"]["sources"][: scale.packages]
        sizes = {
            "curation.output": scale.dataset,
            "curation.sources": sources,
            "curation.train_tasks": scale.train_tasks,
            "curation.heldout_tasks": scale.heldout_tasks,
            "curation.stability_runs": 2,
        }
        if not dataset_path(self.home, scale.dataset).exists():
            self._make("dataset", "quickstart-dataset", sizes)
        return scale.dataset

    @cached_property
    def policy(self) -> str:
        """Train the policy; return its run."""
        settings = {
            "trainer.iterations": self.scale.iterations,
            "evaluation.samples": 1,
            "evaluation.train_samples": 0,
            "trainer.threads": 1,
        }
        return self._make("policy", "quickstart", {"dataset.name": self.dataset, **settings, **ACTING})

    @cached_property
    def train_rollouts(self) -> list[str]:
        """Roll the trained policy out on the training tasks; return its run, or [] without rollouts."""
        if not self.scale.train_rollouts:
            return []
        settings = {
            "dataset.name": self.dataset,
            "policy.checkpoint": f"run:{self.policy}",
            "rollout.group_size": self.scale.train_rollouts,
        }
        return [self._make("training rollouts", "quickstart-collect", {**settings, **ACTING})]

    @cached_property
    def testing_agent(self) -> str:
        """Train the testing agent on the kept lessons; return its run."""
        overrides = {
            "trainer.epochs": self.scale.agent_epochs,
            "trainer.learning_rate": 1e-3,
            "trainer.heldout_share": 0.1,
            "trainer.threads": 1,
            "conversation.prompt": WRITER["prompt"],
        }
        part = "testing agent"
        folder = self.folder(self._name(part, "quickstart-fine-tune", overrides))
        if not (folder / TRAJECTORIES_FILE).exists():
            kept = self._kept_lessons()
            folder.mkdir(parents=True, exist_ok=True)
            write_trajectories(folder / TRAJECTORIES_FILE, kept)
        return self._make(part, "quickstart-fine-tune", overrides)

    def _kept_lessons(self) -> Any:
        rows = {row.task.id: row for row in self._rows("train") if lesson(row.task) is not None}
        source = self.home / "imports" / f"{self.dataset}-lessons.jsonl"
        write_lessons(rows.values(), source)
        name = self._make(
            "lessons",
            "write-tests",
            {
                "dataset.name": self.dataset,
                "dataset.split": "train",
                "policy.type": "replay",
                "policy.source": str(source),
                "rollout.group_size": 1,
                "agent": WRITER,
                **SANDBOX,
            },
        )
        spool = self.folder(name) / SPOOL_NAME
        rule = ImprovementConfig(distinct_patches=False)
        chosen = choose_kept(spool, rule, number=0, seed=0, check=_go_on)
        return read_kept(spool, chosen.chosen, rows, run_id=name, model="", check=_go_on)

    @cached_property
    def written_tests(self) -> str:
        """Sample tests for the held-out tasks from the testing agent; return the run."""
        settings = {
            "dataset.name": self.dataset,
            "policy.checkpoint": f"run:{self.testing_agent}",
            "dataset.limit": self.scale.evaluated_tasks,
            "rollout.group_size": self.scale.tests,
            "agent": WRITER,
        }
        return self._make("written tests", "write-tests", {**settings, **SANDBOX})

    def rollouts(self, seed: int) -> str:
        """Roll the policy out on held-out tasks; return the run."""
        settings = {
            "dataset.name": self.dataset,
            "dataset.limit": self.scale.evaluated_tasks,
            "policy.checkpoint": f"run:{self.policy}",
            "rollout.group_size": self.scale.rollouts,
            "seed": seed,
        }
        return self._make(f"held-out rollouts s{seed}", "quickstart-evaluate", {**settings, **ACTING})

    def judge(self, seed: int) -> str:
        """Train a seed's judge; return its run."""
        return self._make(f"judge s{seed}", "train-judge", self._judge_settings(seed))

    def scores(self, seed: int, judge: str, rollouts: str) -> str:
        """Score a run with a judge; return the verifier's run."""
        settings = {
            "policy.checkpoint": f"run:{judge}",
            "verifier.runs": [rollouts],
            "verifier.part": self.scale.part,
            "verifier.max_context": 2048,
        }
        return self._make(f"scores s{seed}", "verify", settings)

    def _judge_settings(self, seed: int) -> dict[str, Any]:
        return {
            "seed": seed,
            "judgements.on_policy": [self.policy, *self.train_rollouts],
            "judgements.part": self.scale.part,
            "judgements.per_task": self.scale.pairs_per_task,
            "trainer.start": f"run:{self.policy}",
            "trainer.epochs": self.scale.judge_epochs,
            "trainer.learning_rate": self.scale.judge_rate,
            "trainer.batch_size": 8,
            "trainer.max_tokens": 2048,
            "trainer.tokens_per_microbatch": 2048,
            "trainer.lora_rank": 0,
            "trainer.lora_targets": [],
            "trainer.precision": "f32",
            "trainer.activation_checkpointing": False,
            "trainer.heldout_share": 0.1,
            "trainer.threads": 1,
        }

    def by_tests(self, rollouts: Sequence[str]) -> str:
        """Run regression tests and written tests on the patches of runs; return the verifier's run."""
        settings = {
            "verifier.runs": list(rollouts),
            "verifier.tests": [self.written_tests],
            "verifier.max_test_files": 2,
            "verifier.timeout_s": 60.0,
        }
        return self._make("scores by tests", "verify-by-tests", {**settings, **SANDBOX})

    def _rows(self, split: str) -> list[TaskRow]:
        return [row for row in load_dataset(self.home, self.dataset).rows if row.split == split]

    def _config(self, part: str, recipe: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
        return configured(recipe, {**overrides, "name": f"scaling: {part}"})

    def _name(self, part: str, recipe: str, overrides: Mapping[str, Any]) -> str:
        prefix = f"bench-scaling-{part.replace(' ', '-')}"
        return run_name(prefix, self._config(part, recipe, overrides))

    def _make(self, part: str, recipe: str, overrides: Mapping[str, Any]) -> str:
        """Run a part unless it is finished; return the run's name. Raises RuntimeError."""
        name = self._name(part, recipe, overrides)
        if not is_finished(self.folder(name)):
            began = time.monotonic()
            finish_run(name, self._config(part, recipe, overrides), self.home)
            print(f"{part}: {time.monotonic() - began:.0f} s", flush=True)
        return name


def _go_on() -> None:
    """Accept every check: reading a finished run's spool is never stopped."""
