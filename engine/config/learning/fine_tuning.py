"""Settings of supervised fine-tuning on stored trajectories."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from engine.config.access.places import CheckpointPlace, Text
from engine.config.base import ImpossibleSettingsError, Section
from engine.config.learning.trainer import OptimizationConfig, TrainerConfig
from engine.errors import Problem
from engine.types import TerminationReason, Verdict

_RANGES = ("reward", "steps", "tokens")


class SelectionRule(Section):
    """Selection of trajectories, balanced over their tasks."""

    distinct_patches: bool = True
    """Use only one of the trajectories with the same patch for the same task."""
    per_task: int | None = Field(default=None, ge=1)
    """Maximum number of trajectories per task."""
    prefer: Literal["random", "shortest"] = "random"
    """Trajectories preferred where not all are used: drawn with the run's seed, or those with the fewest
    generated tokens, before those whose tokens were not counted."""
    limit: int | None = Field(default=None, ge=1)
    """Maximum number of trajectories: one of every task, then a second one, and so on."""


class _TrajectoryFilters(Section):
    runs: tuple[int, ...] = ()
    """Runs whose trajectories are used, by number."""
    dataset: Text = ""
    """Dataset that the runs sampled tasks from."""
    splits: tuple[Text, ...] = ("train", "imported")
    """Splits of the tasks; collected rollouts of held-out tasks stay out by default."""
    phase: Text = "train"
    """Phase of the rollouts: ``train``, or ``eval:NAME`` for those of evaluations."""
    models: tuple[Text, ...] = ()
    """Policies of the rollouts: checkpoints, as in ``policy.checkpoint``, or models behind an endpoint."""
    verdicts: tuple[Verdict, ...] = (Verdict.PASSED,)
    """Verdicts of grading. Trajectories whose outcome is unknown are never used."""
    terminations: tuple[TerminationReason, ...] = ()
    """Reasons for which the rollouts ended."""
    reward_min: float | None = None
    """Minimum reward."""
    reward_max: float | None = None
    """Maximum reward."""
    steps_min: int | None = Field(default=None, ge=0)
    """Minimum number of steps."""
    steps_max: int | None = Field(default=None, ge=0)
    """Maximum number of steps."""
    tokens_min: int | None = Field(default=None, ge=0)
    """Minimum number of generated tokens; trajectories whose tokens were not counted are left out."""
    tokens_max: int | None = Field(default=None, ge=0)
    """Maximum number of generated tokens; trajectories whose tokens were not counted are left out."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        problems = [
            Problem(f"is {low:g}, above {name}_max, which is {high:g}", f"{name}_min")
            for name in _RANGES
            if (low := getattr(self, f"{name}_min")) is not None
            and (high := getattr(self, f"{name}_max")) is not None
            and low > high
        ]
        if problems:
            raise ImpossibleSettingsError(problems)
        return self


class TrajectoryQuery(SelectionRule, _TrajectoryFilters):
    """Selection of stored trajectories; an empty setting selects everything."""


class StartConfig(Section):
    """Start of fine-tuning."""

    start: Annotated[str, CheckpointPlace()] = "builtin:quickstart"
    """Model to train, as in ``policy.checkpoint``."""


class EpochsConfig(Section):
    """Amount of fine-tuning."""

    epochs: int = Field(default=2, ge=1)
    """Passes over the trajectories."""
    max_steps: int | None = Field(default=None, ge=1)
    """Maximum number of optimizer steps, which the schedule then covers; None: as many as the epochs have."""
    batch_size: int = Field(default=8, ge=1)
    """Trajectories per optimizer step; the last step of an epoch may have fewer."""
    max_tokens: int = Field(default=20_480, ge=64)
    """Maximum length of a sequence, tokens."""
    overlong: Literal["cut", "drop"] = "cut"
    """Treatment of longer sequences: cut off at the end, or left out."""
    warmup_share: float = Field(default=0.05, ge=0, lt=1)
    """Share of the optimizer steps over which the learning rate rises linearly to its peak."""


class ImitationConfig(OptimizationConfig, EpochsConfig):
    """Imitation of trajectories: epochs, optimizer, precision, adapters, ranks."""

    learning_rate: float = Field(default=1e-5, gt=0)
    """Peak learning rate of AdamW."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """Learning rate schedule after the warm-up; the latter two end at 0 with the last step."""
    heldout_share: float = Field(default=0.0, ge=0, le=0.5)
    """Share of the tasks whose trajectories are held out to measure the evaluation loss."""
    evaluate_every: int | None = Field(default=None, ge=1)
    """Optimizer steps between measurements of the evaluation loss; None: at the start and after
    each epoch."""
    checkpoint_every: int | None = Field(default=None, ge=1)
    """Optimizer steps between checkpoints; None: after each epoch."""

    @model_validator(mode="after")
    def _measured(self) -> Self:
        if self.evaluate_every is not None and not self.heldout_share:
            raise ImpossibleSettingsError(
                [Problem("has no effect without heldout_share: set that, too", "evaluate_every")]
            )
        return self

    def trainer(self, steps: int) -> TrainerConfig:
        """Return the settings of a trainer for this number of optimizer steps."""
        shared = {name: getattr(self, name) for name in OptimizationConfig.model_fields}
        warmup = round(self.warmup_share * steps)
        return TrainerConfig(**shared, iterations=steps, minibatches=1, warmup_iterations=warmup)


class FineTuningConfig(ImitationConfig, StartConfig):
    """Fine-tuning: start, epochs, optimizer, precision, adapters, ranks."""


class ConversationConfig(Section):
    """Rendering of trajectories without token ids of the trained model's tokenizer."""

    prompt: Text = "deepswe_v1"
    """Versioned prompt in ``engine/agent/prompts``, as in ``agent.prompt``."""
    tool_format: Literal["xml", "native"] = "xml"
    """Format of the tool calls, as in ``agent.tool_format``."""
    tools: Literal["r2e_gym", "openhands"] = "r2e_gym"
    """Names of the tools, as in ``agent.tools``; steps with other tools keep their recorded text."""
    thinking_history: Literal["keep", "drop"] = "keep"
    """Thinking of earlier turns in later prompts, as in ``agent.thinking_history``."""
