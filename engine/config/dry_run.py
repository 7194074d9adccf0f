"""Dry runs: a training run's own code path with a tiny model, on a CPU, in minutes.

Settings are the recipe's unless they need the real hardware: the model, its device, the number of ranks (at
most two), the number of tasks, and the limits of a rollout. A random model solves nothing and only hits
limits: nothing is filtered and entropy is rewarded, so that its update has a gradient.
Importing this module loads no model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.config.run import AnyRun, TrainRun
from engine.errors import ConfigError

FALLBACK = "quickstart"
"""Dataset of dry runs where the recipe's own is missing; its sandboxes need only this machine."""


def dry_run_settings(config: AnyRun, *, checkpoint: Path, datasets: Path) -> dict[str, Any]:
    """Return the overrides that make a dry run of a training run: one iteration, two groups of two.

    Args:
        config: the run.
        checkpoint: folder of the tiny model.
        datasets: folder with one subfolder per dataset.

    Raises:
        ConfigError: the run is of another kind, its policy is already tiny, or no dataset exists.
    """
    if not isinstance(config, TrainRun):
        raise ConfigError(f"only runs of kind 'train' can be dry runs; this is of kind '{config.kind}'")
    if config.policy.checkpoint == "warm" or config.policy.checkpoint.startswith("builtin:"):
        raise ConfigError(
            f"the policy '{config.policy.checkpoint}' is already tiny: run the recipe itself, with "
            "trainer.iterations=1"
        )
    trainer, agent = config.trainer, config.agent
    context_parallel = min(2, trainer.context_parallel)
    return {
        **_dataset(config, datasets),
        "policy.checkpoint": str(checkpoint),
        "policy.max_batch": min(8, config.policy.max_batch),
        "policy.engine": "builtin",
        "policy.vllm": {},
        "rollout.group_size": 2,
        "rollout.max_concurrent": 4,
        "agent.max_steps": min(2, agent.max_steps),
        "agent.max_context": min(16_384, agent.max_context),
        "agent.max_response": min(64, agent.max_response),
        "algorithm.filtered_reasons": [],
        "algorithm.filtered_baseline": "drop",
        "algorithm.entropy_coefficient": max(1e-3, config.algorithm.entropy_coefficient),
        "trainer.iterations": 1,
        "trainer.tasks_per_iteration": 2,
        "trainer.minibatches": min(2, trainer.minibatches),
        "trainer.context_parallel": context_parallel,
        "trainer.data_parallel": 1 if context_parallel == 2 else min(2, trainer.data_parallel),
        "launcher": {},
        "rollout.workers": 1,
        "rollout.launcher": "local",
        "rollout.worker_memory_mb": 0,
        "trainer.launcher": "local",
        "trainer.device": "cpu",
        "trainer.threads": 1,
        "evaluation.dataset": None,
        "evaluation.max_steps": None,
        "evaluation.max_context": None,
        "evaluation.samples": 2,
        "evaluation.train_samples": 0,
        "evaluation.every": None,
    }


def _dataset(config: TrainRun, datasets: Path) -> dict[str, Any]:
    if (datasets / config.dataset.name).exists():
        return {}
    if (datasets / FALLBACK).exists():
        return {"dataset.name": FALLBACK, "sandbox.backend": "local"}
    raise ConfigError(
        f"neither the dataset '{config.dataset.name}' nor '{FALLBACK}' is in {datasets}: make one with "
        "`python -m engine.run --recipe quickstart-dataset`"
    )
