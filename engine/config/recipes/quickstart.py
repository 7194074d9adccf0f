"""The quickstart: a 1.6M-parameter agent learns to fix real Python packages on two CPU cores."""

from __future__ import annotations

from engine.config.curation import CurationConfig, FaultKind
from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.config.learning.training import EvaluationConfig, SftConfig
from engine.config.policies import OraclePolicyConfig, TransformerPolicyConfig
from engine.config.rollout import (
    AgentConfig,
    CollectionConfig,
    DatasetConfig,
    GradingConfig,
    RolloutConfig,
)
from engine.config.run import CurateRun, EvaluateRun, RolloutRun, SftRun, TrainRun
from engine.config.sandbox import SandboxConfig

DATASET = "quickstart"
PACKAGES = ("boltons==26.2.0", "toolz==1.0.0", "cachetools==6.2.2")
"""Source distributions of the quickstart's tasks; excluded from the warm start's training data."""
FAULT_KINDS: tuple[FaultKind, ...] = (
    "added_not",
    "arithmetic_swap",
    "augmented_swap",
    "bool_literal",
    "boolean_swap",
    "compare_flip",
    "constant_off_by_one",
    "dropped_minus",
    "dropped_not",
    "equality_flip",
    "identity_flip",
    "membership_flip",
    "paired_name",
    "range_off_by_one",
    "slice_off_by_one",
)
"""Faults whose fix can be inferred from the line itself, learnable in minutes by so small a policy."""

TRAIN_TASKS, HELDOUT_TASKS = 48, 16

AGENT = AgentConfig(
    prompt="compact_v1",
    max_steps=6,
    max_context=1024,
    max_response=192,
    command_timeout_s=10.0,
    rollout_timeout_s=120.0,
    observation_chars=2_000,
    snippet_lines=0,
    step_reminder=False,
)
_DATASET = DatasetConfig(name=DATASET)
_GRADING = GradingConfig(timeout_s=30.0)
_SANDBOX = SandboxConfig(memory_mb=256, disk_mb=64, max_live=64, max_starting=4)


def train() -> TrainRun:
    """Train with GRPO++ on the quickstart tasks, graded by real tests in real sandboxes.

    Filtered trajectories stay in the baseline with reward 0, as in the code that trained
    DeepSWE: otherwise nothing favours siblings that submitted, and the policy forgets to submit.
    A constant learning rate made it forget too (``bench/README.md``).
    """
    return TrainRun(
        name="quickstart",
        dataset=_DATASET,
        agent=AGENT,
        grading=_GRADING,
        sandbox=_SANDBOX,
        algorithm=AlgorithmConfig(preset="grpo_pp", filtered_baseline="keep_zero"),
        trainer=TrainerConfig(iterations=20, learning_rate=5e-4, schedule="linear", threads=1),
        evaluation=EvaluationConfig(samples=8 * HELDOUT_TASKS, train_samples=3 * TRAIN_TASKS),
    )


def evaluate() -> EvaluateRun:
    """Evaluate the shipped checkpoint on the held-out tasks."""
    return EvaluateRun(
        name="quickstart evaluation",
        dataset=DatasetConfig(name=DATASET, split="heldout"),
        agent=AGENT,
        grading=_GRADING,
        sandbox=_SANDBOX,
        rollout=RolloutConfig(group_size=16),
    )


def oracle() -> RolloutRun:
    """Apply the gold patches through the agent's tools; every task must be solved."""
    return RolloutRun(
        name="quickstart oracle",
        dataset=_DATASET,
        policy=OraclePolicyConfig(),
        grading=_GRADING,
        sandbox=_SANDBOX,
        rollout=RolloutConfig(group_size=1),
    )


def collect() -> RolloutRun:
    """Collect rollouts of the shipped checkpoint on the training tasks."""
    return RolloutRun(
        name="quickstart collection",
        dataset=_DATASET,
        agent=AGENT,
        grading=_GRADING,
        sandbox=_SANDBOX,
        rollout=RolloutConfig(group_size=8),
    )


def try_model() -> RolloutRun:
    """Try a model on a few tasks: does it write tool calls in this format, how long, and how fast?"""
    return RolloutRun(
        name="model try",
        dataset=DatasetConfig(name=DATASET, limit=4),
        agent=AgentConfig(
            prompt="deepswe_v1", max_steps=4, max_context=8192, max_response=256, command_timeout_s=30.0
        ),
        grading=_GRADING,
        policy=TransformerPolicyConfig(checkpoint="Qwen/Qwen2.5-Coder-0.5B-Instruct"),
        sandbox=_SANDBOX,
        rollout=RolloutConfig(group_size=1, max_concurrent=4),
        collection=CollectionConfig(early_stop=0),
    )


def dataset() -> CurateRun:
    """Build the quickstart dataset: faults injected into pure-Python packages, verified by real tests."""
    return CurateRun(
        name="quickstart dataset",
        curation=CurationConfig(
            sources=tuple(f"pip:{package}" for package in PACKAGES),
            output=DATASET,
            train_tasks=TRAIN_TASKS,
            heldout_tasks=HELDOUT_TASKS,
            max_function_lines=20,
            fault_kinds=FAULT_KINDS,
            test_timeout_s=60.0,
            extra_tasks=("wcmatch-45",),
        ),
    )


def sft() -> SftRun:
    """Train the warm-start policy from which the shipped checkpoint was made."""
    return SftRun(
        name="quickstart warm start",
        agent=AGENT,
        sft=SftConfig(
            fault_kinds=FAULT_KINDS,
            excluded_packages=tuple(p.split("==")[0].replace("-", "_") for p in PACKAGES),
        ),
    )
