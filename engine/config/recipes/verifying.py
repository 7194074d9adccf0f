"""Verification and regrading of finished trajectories."""

from __future__ import annotations

from engine.config.environment import ReproductionConfig
from engine.config.learning.fine_tuning import FineTuningConfig
from engine.config.policies import TransformerPolicyConfig
from engine.config.recipes.quickstart import DATASET
from engine.config.rollout import AgentConfig, DatasetConfig, GradingConfig, RolloutConfig
from engine.config.run import JudgeTrainingRun, RegradeRun, RolloutRun, TestVerifierRun, VerifierRun


def verify() -> VerifierRun:
    """Score the trajectories of finished runs with a model that reads them."""
    return VerifierRun(name="verification", policy=TransformerPolicyConfig(checkpoint="Qwen/Qwen3-4B"))


def verify_by_tests() -> TestVerifierRun:
    """Score the patches of finished runs by regression tests and by tests that agents wrote."""
    return TestVerifierRun(name="verification by tests")


def write_tests() -> RolloutRun:
    """Collect tests that reproduce the issues, written by testing agents, for a verifier."""
    return RolloutRun(
        name="reproduction tests",
        dataset=DatasetConfig(name=DATASET, split="heldout"),
        environment=ReproductionConfig(),
        policy=TransformerPolicyConfig(checkpoint="Qwen/Qwen3-4B"),
        agent=AgentConfig(prompt="reproduction_v1", max_context=32_768, max_response=8192),
        grading=GradingConfig(timeout_s=120.0),
        rollout=RolloutConfig(group_size=4),
    )


def train_judge() -> JudgeTrainingRun:
    """Train a judge on graded trajectories of finished runs: LoRA, two epochs, DeepSWE's context."""
    return JudgeTrainingRun(
        name="judge",
        trainer=FineTuningConfig(
            start="Qwen/Qwen3-14B",
            lora_rank=64,
            lora_targets=("all-linear",),
            batch_size=1,
            max_tokens=76_800,
            tokens_per_microbatch=76_800,
            precision="bf16",
            activation_checkpointing=True,
            heldout_share=0.05,
        ),
    )


def regrade() -> RegradeRun:
    """Grade the patches of finished runs again, by the current tests and rules."""
    return RegradeRun(name="regrading")
