"""Settings of rollouts: dataset, agent, grading, policy, scheduling."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from engine.config.base import Section
from engine.config.places import CheckpointPlace, LocalPath, Text


class DatasetConfig(Section):
    """Which tasks."""

    name: Text = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of a dataset under the data folder's ``datasets/``."""
    split: Text = "train"
    """Which of the dataset's splits to draw from."""
    limit: int | None = Field(default=None, ge=1)
    """Use only the first so many tasks."""
    quarantined: Literal["leave_out", "include"] = "leave_out"
    """What to do with tasks in quarantine: their row was found wrong, or a person put them there."""
    solve_rate_min: float | None = Field(default=None, ge=0, le=1)
    """Leave out tasks solved in a smaller share of all attempts measured so far (0.01: never solved)."""
    solve_rate_max: float | None = Field(default=None, ge=0, le=1)
    """Leave out tasks solved in a larger share of them (0.99: always solved)."""
    solve_rate_samples: int = Field(default=8, ge=1)
    """Graded attempts a task needs before its solve rate counts; tasks with fewer stay."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        low, high = self.solve_rate_min, self.solve_rate_max
        if low is not None and high is not None and low > high:
            raise ValueError(f"solve_rate_min is {low:g}, above solve_rate_max, which is {high:g}")
        return self

    @property
    def uses_solve_rates(self) -> bool:
        """Whether tasks are chosen by how often they were solved."""
        return self.solve_rate_min is not None or self.solve_rate_max is not None


class AgentConfig(Section):
    """The agent loop's prompt, format and limits."""

    prompt: Text = "compact_v1"
    """Versioned prompt of ``engine/agent/prompts``: ``deepswe_v1`` (full), ``compact_v1`` (tiny models),
    ``frozenlake_v1``, ``frozenlake_compact_v1``."""
    tool_format: Literal["xml", "function_calling", "words"] = "xml"
    """How the model writes tool calls; ``words`` (``move up``) suits tools of one-word arguments only."""
    max_steps: int = Field(default=50, ge=1)
    """Turns after which the rollout ends with ``max_steps``."""
    max_context: int = Field(default=65_536, ge=64)
    """Tokens of the whole conversation after which it ends with ``max_context``."""
    max_response: int = Field(default=16_384, ge=8)
    """Tokens of one turn after which it ends with ``max_response``."""
    command_timeout_s: float = Field(default=90.0, gt=0)
    """Deadline of one command; the agent sees the partial output."""
    rollout_timeout_s: float = Field(default=1200.0, gt=0)
    """Wall time after which it ends with ``rollout_timeout``."""
    observation_chars: int = Field(default=10_000, ge=200)
    """Longest observation shown to the model; head and tail are kept, the rest counted."""
    snippet_lines: int = Field(default=4, ge=0)
    """Lines shown around an edit by ``file_editor``."""
    step_reminder: bool = True
    """Append ``Steps Remaining: N`` to every observation."""


class GradingConfig(Section):
    """How patches are judged."""

    timeout_s: float = Field(default=300.0, gt=0)
    """Time for the tests of one grading in training, where the task's row sets none."""
    evaluation_timeout_s: float | None = Field(default=None, gt=0)
    """The same in evaluations; None is ``timeout_s``."""
    map_rule: Literal["strict", "tolerant"] = "strict"
    """How tasks graded by their map of outcomes (R2E-Gym) compare it: ``strict`` wants every test to end as
    expected, ``tolerant`` only that those expected to pass do."""
    reuse_verdicts: bool = True
    """Re-use the verdict of an identical patch on a task proven deterministic."""
    max_parallel: int = Field(default=2, ge=1)
    """How many gradings may run at once."""


class TransformerPolicyConfig(Section):
    """A transformer sampled by the engine's own batched KV-cache sampler."""

    type: Literal["transformer"] = "transformer"
    checkpoint: Annotated[str, CheckpointPlace()] = "builtin:quickstart"
    """Folder with config.json, model.safetensors and tokenizer.json; or ``builtin:<name>`` (ships with
    the engine), ``run:<id>`` (a run's last checkpoint), ``fresh:<architecture>`` (random weights), ``warm``
    (FrozenLake: taught by imitation as ``environment.warm_start_*`` say, once per data folder). On a server a
    folder lies below a policy folder."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling mass."""
    max_batch: int = Field(default=64, ge=1)
    """Sequences sampled at once."""


class OraclePolicyConfig(Section):
    """Applies the gold patch through the tools, then submits."""

    type: Literal["oracle"] = "oracle"


class NoopPolicyConfig(Section):
    """Submits at once without touching anything."""

    type: Literal["noop"] = "noop"


class ReplayPolicyConfig(Section):
    """Replays the responses of stored trajectories."""

    type: Literal["replay"] = "replay"
    source: Annotated[str, LocalPath("imports")]
    """JSONL of trajectories (our own export)."""


PolicyConfig = Annotated[
    TransformerPolicyConfig | OraclePolicyConfig | NoopPolicyConfig | ReplayPolicyConfig,
    Field(discriminator="type"),
]


class RolloutConfig(Section):
    """How many rollouts, how many at once."""

    group_size: int = Field(default=8, ge=1)
    """Sibling rollouts per task."""
    max_concurrent: int = Field(default=64, ge=1)
    """Trajectories in flight at once."""
