"""Settings of the update: optimizer, batches, checkpoints."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from engine.config.base import Section
from engine.config.places import CheckpointPlace

LoraTarget = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class TrainerConfig(Section):
    """The update."""

    iterations: int = Field(default=60, ge=1)
    """Passes of collect → grade → update."""
    tasks_per_iteration: int = Field(default=8, ge=1)
    """Groups per iteration."""
    minibatches: int = Field(default=2, ge=1)
    """Optimizer steps per iteration; with 1 the clip never acts."""
    learning_rate: float = Field(default=2e-4, gt=0)
    """AdamW learning rate, the schedule's peak."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes on after the warm-up; the latter two end at 0 with the last iteration."""
    warmup_iterations: int = Field(default=0, ge=0)
    """Iterations over which the learning rate rises linearly to its peak."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's decay of the gradient's mean."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """AdamW's decay of the squared gradient's mean."""
    epsilon: float = Field(default=1e-8, gt=0)
    """AdamW's ε."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW weight decay."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradient clipping."""
    tokens_per_microbatch: int = Field(default=2048, ge=64)
    """Tokens packed into one forward pass; never changes the result. Small ones suit a CPU's cache."""
    precision: Literal["f32", "bf16"] = "f32"
    """What matrices are multiplied in; weights, optimizer and losses stay float32."""
    activation_checkpointing: bool = False
    """Keep only each layer's input for the backward pass and compute the rest again: less memory, a third
    more arithmetic."""
    reference: Annotated[str | None, CheckpointPlace()] = None
    """Checkpoint whose divergence the KL term measures, as in ``policy.checkpoint``; None is what the run
    started from."""
    lora_rank: int = Field(default=0, ge=0)
    """Rank of low-rank adapters, the only weights trained then; 0 trains all weights."""
    lora_alpha: float = Field(default=16.0, gt=0)
    """Adapters are scaled by this over their rank."""
    lora_targets: tuple[LoraTarget, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    """Matrices that get an adapter."""
    data_parallel: int = Field(default=1, ge=1)
    """Ranks that share an optimizer step's trajectories; weights and optimizer are sharded over all ranks."""
    context_parallel: int = Field(default=1, ge=1)
    """Ranks that share each trajectory's tokens, for contexts too long for one device."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where weights live; auto is CUDA where there is one."""
    threads: int = Field(default=2, ge=1)
    """CPU threads of torch, in each rank."""
    checkpoint_every: int = Field(default=1, ge=1)
    """Iterations between checkpoints."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """How many of the last checkpoints are kept."""
    keep_best: int = Field(default=1, ge=0)
    """How many of the checkpoints with the best held-out solve rate are kept besides."""

    @model_validator(mode="after")
    def _possible(self) -> TrainerConfig:
        if self.lora_rank and not self.lora_targets:
            raise ValueError("lora_rank is set and lora_targets is empty: nothing would be trained")
        if self.lora_rank and self.data_parallel * self.context_parallel > 1:
            raise ValueError("lora_rank works on one rank: set data_parallel and context_parallel to 1")
        return self
