"""Resources that a run reserves on the nodes of a Ray cluster, beside those of its own process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from engine.config.learning.trainer import OptimizationConfig
from engine.config.policies import TransformerPolicyConfig, VllmConfig
from engine.config.rollout import RolloutConfig
from engine.config.run import (
    AnyRun,
    EvaluateRun,
    FineTuneRun,
    ImproveRun,
    JudgeTrainingRun,
    RolloutRun,
    TrainRun,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundles:
    """Equal sets of resources; each is reserved on one node."""

    count: int
    resources: Mapping[str, float]
    """Resources of one bundle by Ray's names."""
    strategy: Literal["PACK", "SPREAD"]
    """``PACK`` prefers few nodes, ``SPREAD`` many."""
    setting: str
    """Dotted name of the setting to lower where they do not fit."""
    launcher: str
    """Dotted name of the setting that selects the cluster."""

    def __str__(self) -> str:
        return self.describe("GPU" if "GPU" in self.resources else "CPU")

    def describe(self, name: str) -> str:
        """Return the request for one resource in words, e.g. ``2 × 4 GPUs packed``."""
        amount = self.resources[name]
        placement = "packed" if self.strategy == "PACK" else "spread"
        return f"{self.count} × {amount:g} {name}{'s' * (amount != 1)} {placement}"


def run_bundles(run: AnyRun, *, cluster_has_gpus: bool) -> list[Bundles]:
    """Return the bundles that a run reserves on a cluster; empty where it runs on one node.

    Args:
        run: the run's configuration.
        cluster_has_gpus: whether any node has GPUs.
    """
    bundles = []
    if isinstance(run, TrainRun | FineTuneRun | JudgeTrainingRun) and run.trainer.launcher == "ray":
        gpus = ranks_use_gpus(run.trainer, cluster_has=cluster_has_gpus)
        bundles.append(rank_bundles(run.trainer, gpus=gpus))
    policy = getattr(run, "policy", None)
    if isinstance(policy, TransformerPolicyConfig) and policy.vllm.launcher == "ray":
        bundles.append(server_bundles(policy.vllm, gpus=cluster_has_gpus))
    if isinstance(run, TrainRun | ImproveRun | RolloutRun | EvaluateRun) and run.rollout.launcher == "ray":
        bundles.append(worker_bundles(run.rollout))
    return bundles


def rank_bundles(trainer: OptimizationConfig, *, gpus: bool) -> Bundles:
    """Return the bundles of a trainer's ranks: one for each data rank.

    Context-parallel ranks exchange the tokens of every layer, so they share a node.

    Args:
        trainer: number and threads of the ranks.
        gpus: whether each rank has a GPU.
    """
    size = trainer.context_parallel
    return Bundles(
        count=trainer.data_parallel,
        resources={"CPU": float(size * trainer.threads), **({"GPU": float(size)} if gpus else {})},
        strategy="PACK",
        setting="trainer.data_parallel" if size == 1 else "trainer.context_parallel",
        launcher="trainer.launcher",
    )


def server_bundles(servers: VllmConfig, *, gpus: bool) -> Bundles:
    """Return the bundles of a policy's inference servers: one for each.

    Args:
        servers: their number and size.
        gpus: whether they compute on GPUs.
    """
    size = servers.tensor_parallel
    return Bundles(
        count=servers.replicas,
        resources={"CPU": float(size), **({"GPU": float(size)} if gpus else {})},
        strategy="SPREAD",
        setting="policy.vllm.replicas" if size == 1 else "policy.vllm.tensor_parallel",
        launcher="policy.vllm.launcher",
    )


def worker_bundles(rollout: RolloutConfig) -> Bundles:
    """Return the bundles of rollout workers: a CPU for each."""
    return Bundles(
        count=rollout.workers,
        resources={"CPU": 1.0},
        strategy="SPREAD",
        setting="rollout.workers",
        launcher="rollout.launcher",
    )


def ranks_use_gpus(trainer: OptimizationConfig, *, cluster_has: bool) -> bool:
    """Return whether the ranks of a trainer on a cluster use GPUs."""
    return trainer.device == "cuda" or (trainer.device == "auto" and cluster_has)
