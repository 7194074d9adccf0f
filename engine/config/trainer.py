"""Settings of the update: optimizer, batches, checkpoints."""

from __future__ import annotations

from pydantic import Field

from engine.config.base import Section


class TrainerConfig(Section):
    """The update."""

    iterations: int = Field(default=60, ge=1)
    """Passes of collect → grade → update."""
    tasks_per_iteration: int = Field(default=8, ge=1)
    """Groups per iteration."""
    rest_after_solved: int = Field(default=0, ge=0)
    """Passes over the tasks that one sits out after all its siblings solved it; 0 is none."""
    minibatches: int = Field(default=2, ge=1)
    """Optimizer steps per iteration; with 1 the clip never acts."""
    learning_rate: float = Field(default=2e-4, gt=0)
    """AdamW learning rate."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW weight decay."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradient clipping."""
    tokens_per_microbatch: int = Field(default=2048, ge=64)
    """Padded tokens of one forward pass; never changes the result. Small ones suit a CPU's cache."""
    threads: int = Field(default=2, ge=1)
    """CPU threads of torch."""
    checkpoint_every: int = Field(default=1, ge=1)
    """Iterations between checkpoints."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """How many of the last checkpoints are kept."""
