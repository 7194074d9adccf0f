"""FrozenLake: a 0.4M-parameter policy learns to cross frozen lakes in minutes on one CPU core.

The reference experiment of the objective's ingredients (``bench/frozenlake.py``): small enough to repeat over
settings and seeds, real enough to exercise every part of a large run.
"""

from __future__ import annotations

from engine.config.environment import FrozenLakeConfig
from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.config.learning.training import EvaluationConfig
from engine.config.policies import TransformerPolicyConfig
from engine.config.rollout import AgentConfig, DatasetConfig, RolloutConfig
from engine.config.run import EvaluateRun, SftRun, TrainRun

LAKE = FrozenLakeConfig()
AGENT = AgentConfig(
    prompt="frozenlake_compact_v1",
    tool_format="words",
    max_steps=8,
    max_context=320,
    max_response=8,
    step_reminder=False,
)
_DATASET = DatasetConfig(name=LAKE.dataset_name)
_HELDOUT = DatasetConfig(name=LAKE.dataset_name, split="heldout")
_POLICY = TransformerPolicyConfig(checkpoint="warm", max_batch=128)
"""Sampling settings; as many cache rows as rollouts in flight, because an evicted prompt must be
recomputed."""


def train() -> TrainRun:
    """Train with GRPO++ on FrozenLake after a short warm start; episodes cut off at the step limit count."""
    return TrainRun(
        name="frozenlake",
        dataset=_DATASET,
        environment=LAKE,
        agent=AGENT,
        policy=_POLICY,
        rollout=RolloutConfig(group_size=8, max_concurrent=128),
        algorithm=AlgorithmConfig(preset="grpo_pp", filtered_reasons=()),
        trainer=TrainerConfig(
            iterations=100,
            tasks_per_iteration=16,
            minibatches=2,
            learning_rate=3e-4,
            threads=1,
            checkpoint_every=10,
        ),
        evaluation=EvaluationConfig(samples=256, train_samples=0, every=10),
    )


def evaluate() -> EvaluateRun:
    """Evaluate the warm-started FrozenLake policy on the held-out maps."""
    return EvaluateRun(
        name="frozenlake evaluation",
        dataset=_HELDOUT,
        environment=LAKE,
        agent=AGENT,
        policy=_POLICY,
        rollout=RolloutConfig(group_size=4, max_concurrent=128),
    )


def sft() -> SftRun:
    """Train FrozenLake's warm-start policy: imitation of an expert that often moves at random."""
    return SftRun(name="frozenlake warm start", environment=LAKE, agent=AGENT)
