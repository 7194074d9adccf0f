"""Settings of schedules, supervised fine-tuning and evaluation."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from engine.config.access.places import CheckpointPlace, Text
from engine.config.base import ImpossibleSettingsError, Section
from engine.config.curation import FaultKind
from engine.config.rollout import AgentConfig
from engine.errors import Problem


class ScheduleConfig(Section):
    """Order of collection and updates: one after the other, or at the same time with a bound on staleness."""

    mode: Literal["sync", "one_step_off", "async"] = "sync"
    """``sync`` collects, then updates. The others collect during the update: ``one_step_off`` the whole next
    iteration, ``async`` up to ``max_staleness`` iterations ahead, and trains on whichever groups are
    complete, the oldest first."""
    max_staleness: int | None = Field(default=None, ge=1)
    """Maximum number of updates between the start of a group and the update that trains on it, with mode
    ``async`` only; None: 4."""
    on_update: Literal["continue", "restart"] = "continue"
    """Unfinished rollouts when the weights change: ``continue`` samples on with the new weights, ``restart``
    starts them anew in fresh sandboxes."""
    min_siblings: int | None = Field(default=None, ge=1)
    """Graded siblings after which the rest of a group has only ``straggler_s`` more; None waits for all."""
    straggler_s: float = Field(default=60.0, ge=0)
    """Time after ``min_siblings`` for the rest of a group, seconds; unfinished ones are then cancelled."""

    @property
    def staleness(self) -> int:
        """Return the maximum number of updates between a group's start and the update that trains on it."""
        if self.mode == "async":
            return self.max_staleness or 4
        return int(self.mode == "one_step_off")

    @model_validator(mode="after")
    def _effective(self) -> Self:
        problems = []
        if self.mode != "async" and self.max_staleness is not None:
            problems.append(Problem(f"has no effect with mode '{self.mode}': leave it out", "max_staleness"))
        for name in ("on_update", "min_siblings", "straggler_s"):
            if self.mode == "sync" and getattr(self, name) != type(self).model_fields[name].default:
                problems.append(Problem("has no effect with mode 'sync': leave it out", name))
        if self.mode != "sync" and self.min_siblings is None and self.straggler_s != 60.0:
            problems.append(Problem("has no effect without min_siblings: leave it out", "straggler_s"))
        if problems:
            raise ImpossibleSettingsError(problems)
        return self


class CurriculumConfig(Section):
    """Frequency of the training tasks: once per pass, or by their solve rates in this run."""

    mode: Literal["passes", "solve_rate"] = "passes"
    """``passes`` draws every task once per pass. ``solve_rate`` draws a task more often, the nearer its solve
    rate is to one half; tasks that are solved always or never rest."""
    rest_passes: int = Field(default=3, ge=1)
    """Passes for which a task is left out while it is solved always or never, with mode ``solve_rate``; then
    it returns for one group."""
    groups: int = Field(default=2, ge=1)
    """Newest groups of a task over which its solve rate is measured, with mode ``solve_rate``."""
    min_weight: float = Field(default=0.25, gt=0, le=1)
    """Minimum frequency of a task that does not rest, relative to once per pass, with mode ``solve_rate``."""

    @model_validator(mode="after")
    def _effective(self) -> Self:
        fields = type(self).model_fields
        inert = [name for name in fields if name != "mode" and getattr(self, name) != fields[name].default]
        if self.mode == "passes" and inert:
            problem = "has no effect with mode 'passes': leave it out"
            raise ImpossibleSettingsError([Problem(problem, name) for name in inert])
        return self


class HeldoutConfig(Section):
    """Evaluation on fixed tasks, never used for training; limits that are None are those of training."""

    dataset: Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None = None
    """Dataset with the held-out split; None: the one trained on."""
    split: Text = "heldout"
    """Held-out split."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature of evaluations."""
    prompt: Text | None = None
    """Prompt of evaluations, as in ``agent.prompt``."""
    max_steps: int | None = Field(default=None, ge=1)
    """Maximum number of turns in evaluations."""
    max_context: int | None = Field(default=None, ge=64)
    """Maximum length of a conversation in evaluations, tokens."""
    rollout_timeout_s: float | None = Field(default=None, gt=0)
    """Maximum wall time of a rollout in evaluations, seconds."""
    samples: int = Field(default=256, ge=1)
    """Trajectories per evaluation, spread evenly over the tasks."""

    def agent(self, training: AgentConfig) -> AgentConfig:
        """Return the agent of evaluations, given the one in training."""
        limits = ("prompt", "max_steps", "max_context", "rollout_timeout_s")
        overrides = {name: value for name in limits if (value := getattr(self, name)) is not None}
        return training.model_copy(update=overrides)


class EvaluationConfig(HeldoutConfig):
    """Evaluations before, during and after training; limits that are None are those of training."""

    train_samples: int = Field(default=256, ge=0)
    """Trajectories sampled on the training tasks before and after training; 0 disables it."""
    every: int | None = Field(default=None, ge=1)
    """Interval between evaluations, iterations; None evaluates only before and after training."""


class SftConfig(Section):
    """Supervised warm start on a stream of mutated real functions in the real tool format."""

    start: Annotated[str | None, CheckpointPlace()] = None
    """Initial checkpoint, as in ``policy.checkpoint``; None starts from random weights."""
    minutes: float = Field(default=25.0, gt=0)
    """Wall time of training, minutes."""
    sequences_per_step: int = Field(default=8, ge=1)
    """Episodes per optimizer step."""
    max_tokens: int = Field(default=768, ge=64)
    """Maximum length of an episode, tokens; longer ones are skipped."""
    max_edits: int = Field(default=4, ge=1)
    """Maximum number of faults injected into one function, each fixed by one edit."""
    prompt_weight: float = Field(default=0.3, ge=0, le=1)
    """Loss weight of tokens that the policy does not sample (prompt and observations)."""
    muon_learning_rate: float = Field(default=0.02, gt=0)
    """Learning rate of weight matrices (Muon)."""
    adam_learning_rate: float = Field(default=2e-3, gt=0)
    """Learning rate of all other parameters (AdamW)."""
    fault_kinds: tuple[FaultKind, ...] = ()
    """Kinds of fault in the stream; empty uses every kind."""
    max_function_lines: int = Field(default=24, ge=3)
    """Maximum length of a function in the stream, lines."""
    excluded_packages: tuple[Text, ...] = ()
    """Top-level packages excluded from the stream (the packages of the quickstart's tasks)."""
    evaluation_episodes: int = Field(default=256, ge=0)
    """Held-out episodes on which the trained policy is evaluated, twice; 0 skips the evaluation."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of torch; more than one gives no speed-up for so small a model."""
