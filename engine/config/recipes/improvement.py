"""Self-improvement by rejection sampling."""

from __future__ import annotations

from engine.config.learning.fine_tuning import ImitationConfig
from engine.config.learning.improvement import ImprovementConfig
from engine.config.learning.training import HeldoutConfig
from engine.config.policies import TransformerPolicyConfig
from engine.config.recipes import deepswe
from engine.config.recipes import quickstart as small
from engine.config.rollout import AgentConfig, DatasetConfig, GradingConfig, RolloutConfig
from engine.config.run import ImproveRun
from engine.config.sandbox import SandboxConfig


def improve() -> ImproveRun:
    """Sample a model 16 times per task at temperature 0.5, fine-tune it on passed rollouts, and repeat."""
    return ImproveRun(
        name="self-improvement",
        dataset=DatasetConfig(name=deepswe.DATASET),
        sandbox=SandboxConfig(
            backend="docker", memory_mb=4096, processes=256, disk_mb=4096, max_live=64, max_starting=16
        ),
        agent=AgentConfig(
            prompt="deepswe_v1",
            max_steps=50,
            max_context=32_768,
            max_response=8192,
            rollout_timeout_s=2400.0,
        ),
        grading=GradingConfig(max_parallel=8),
        policy=TransformerPolicyConfig(
            checkpoint="Qwen/Qwen2.5-Coder-7B-Instruct", temperature=0.5, max_batch=16
        ),
        trainer=ImitationConfig(
            max_tokens=32_768,
            learning_rate=1e-5,
            tokens_per_microbatch=32_768,
            precision="bf16",
            activation_checkpointing=True,
        ),
    )


def quickstart() -> ImproveRun:
    """Fine-tune the shipped quickstart policy on its own passed rollouts, in three rounds."""
    return ImproveRun(
        name="quickstart self-improvement",
        dataset=DatasetConfig(name=small.DATASET),
        agent=small.AGENT,
        grading=GradingConfig(timeout_s=30.0),
        sandbox=SandboxConfig(memory_mb=256, disk_mb=64, max_live=64, max_starting=4),
        rollout=RolloutConfig(group_size=16),
        improvement=ImprovementConfig(rounds=3, per_task=4),
        trainer=ImitationConfig(max_tokens=1024, learning_rate=1e-4, threads=1),
        evaluation=HeldoutConfig(samples=128),
    )
