"""Settings of the update: optimizer, batches and checkpoints."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from engine.config.access.places import CheckpointPlace, Text
from engine.config.base import Section

ALL_LINEAR = "all-linear"
"""Value of ``lora_targets`` that means every linear layer."""


class IterationsConfig(Section):
    """Amount of reinforcement learning."""

    iterations: int = Field(default=60, ge=1, lt=2**31)
    """Number of iterations (collect → grade → update)."""
    tasks_per_iteration: int = Field(default=8, ge=1)
    """Groups (tasks) per iteration."""
    minibatches: int = Field(default=2, ge=1)
    """Optimizer steps per iteration; with 1 the clip never takes effect."""
    traced_groups: float = Field(default=0.05, ge=0, le=1)
    """Share of an update's groups, rounded up, whose tokens are recorded with the trainer's log-probabilities
    and entropies: the token page of their trajectories shows why each token got its gradient. About 6 bytes
    per sampled token. Trajectories with more than 262,144 of them are left out."""


class OptimizationConfig(Section):
    """Settings of optimizer steps, for any data: optimizer, precision, adapters, ranks."""

    learning_rate: float = Field(default=2e-4, gt=0)
    """Peak learning rate of AdamW."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate schedule after the warm-up; the latter two end at 0 with the last iteration."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """β1 of AdamW: decay of the gradient's running mean."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """β2 of AdamW: decay of the squared gradient's running mean."""
    epsilon: float = Field(default=1e-8, gt=0)
    """ε of AdamW."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of AdamW."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """AdamW, or torchao's AdamW with moments in 8 bits: a quarter of its memory."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Maximum gradient norm; larger gradients are clipped."""
    tokens_per_microbatch: int = Field(default=2048, ge=64)
    """Tokens packed into one forward pass; does not change the result. Small values suit CPU caches."""
    precision: Literal["f32", "bf16"] = "f32"
    """Precision of matrix products; weights, optimizer state and losses stay float32."""
    activation_checkpointing: bool = False
    """Keep only each layer's input for the backward pass and recompute the rest: less memory, a third more
    arithmetic."""
    lora_rank: int = Field(default=0, ge=0)
    """Rank of LoRA adapters, which are then the only trained weights; 0 trains all weights."""
    lora_alpha: float = Field(default=16.0, gt=0)
    """LoRA alpha; adapters are scaled by alpha / rank."""
    lora_targets: tuple[Text, ...] = ()
    """Linear layers with a LoRA adapter, by the last parts of their names (``q_proj``), or ``all-linear``;
    empty uses those of the model's family."""
    data_parallel: int = Field(default=1, ge=1)
    """Number of ranks that share the trajectories of an optimizer step; weights and optimizer state are
    sharded over all ranks."""
    context_parallel: int = Field(default=1, ge=1)
    """Number of ranks that share the tokens of each trajectory, for contexts too long for one device."""
    launcher: Literal["local", "ray", "torchrun"] = "local"
    """Launcher of the ranks: ``local``, the run itself on its machine; ``ray``, on nodes of the Ray cluster
    that the run is a job of; ``torchrun``, by hand on any machines."""
    rank_timeout_s: float = Field(default=600.0, gt=0)
    """Maximum time for ranks to start, to wait for one another, and without a sign of life, seconds."""
    cpu_offload: bool = False
    """Keep weights, gradients and optimizer state in the host's memory, and only gathered layers on the
    device: less of its memory, slower steps."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the weights; ``auto`` uses CUDA where available."""
    threads: int = Field(default=2, ge=1)
    """CPU threads of torch in each rank. A model as small as the quickstart's is fastest with one: several
    wait for each other, above all where sandboxes want the same processors."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Number of most recent checkpoints to keep."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.cpu_offload and self.device == "cpu":
            raise ValueError(
                "cpu_offload is on and device is 'cpu': weights are in the host's memory anyway; turn it off"
            )
        if self.launcher == "torchrun" and self.data_parallel * self.context_parallel == 1:
            raise ValueError(
                "launcher is 'torchrun' and there is one rank: set data_parallel or context_parallel, or "
                "launcher to 'local'"
            )
        return self


class TrainerConfig(OptimizationConfig, IterationsConfig):
    """Settings of the update."""

    warmup_iterations: int = Field(default=0, ge=0)
    """Iterations over which the learning rate rises linearly to its peak."""
    reference: Annotated[str | None, CheckpointPlace()] = None
    """Checkpoint of the reference policy for the KL term, as in ``policy.checkpoint``; None uses the run's
    initial policy."""
    checkpoint_every: int = Field(default=1, ge=1)
    """Iterations between checkpoints."""
    keep_best: int = Field(default=1, ge=0)
    """Number of additional checkpoints to keep, by best held-out solve rate."""
