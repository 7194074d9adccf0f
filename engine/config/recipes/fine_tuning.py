"""Supervised fine-tuning on stored trajectories."""

from __future__ import annotations

from engine.config.learning.fine_tuning import ConversationConfig, FineTuningConfig
from engine.config.run import FineTuneRun


def fine_tune() -> FineTuneRun:
    """Fine-tune a model on stored trajectories that passed, with R2E-Gym's settings."""
    return FineTuneRun(
        name="fine-tuning",
        trainer=FineTuningConfig(
            start="Qwen/Qwen2.5-Coder-7B-Instruct",
            batch_size=1,
            tokens_per_microbatch=20_480,
            precision="bf16",
            activation_checkpointing=True,
            heldout_share=0.05,
        ),
    )


def quickstart() -> FineTuneRun:
    """Fine-tune the shipped quickstart policy on rollouts that passed."""
    return FineTuneRun(
        name="quickstart fine-tuning",
        trainer=FineTuningConfig(max_tokens=1024, learning_rate=1e-4, heldout_share=0.1, threads=1),
        conversation=ConversationConfig(prompt="compact_v1"),
    )
