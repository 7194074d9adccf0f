"""Settings of rollouts: dataset, agent, grading and scheduling."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from engine.config.access.places import Text
from engine.config.base import ImpossibleSettingsError, Section
from engine.errors import Problem


class DatasetConfig(Section):
    """Selection of tasks."""

    name: Text = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of a dataset in the data folder's ``datasets/``."""
    split: Text = "train"
    """Split of the dataset from which tasks are drawn."""
    limit: int | None = Field(default=None, ge=1)
    """Maximum number of tasks to use, from the first on."""
    quarantined: Literal["leave_out", "include"] = "leave_out"
    """Treatment of quarantined tasks: rows found faulty by validation or quarantined by a person."""
    solve_rate_min: float | None = Field(default=None, ge=0, le=1)
    """Minimum solve rate over all measured attempts; tasks below it are left out (0.01: never solved)."""
    solve_rate_max: float | None = Field(default=None, ge=0, le=1)
    """Maximum solve rate over all measured attempts; tasks above it are left out (0.99: always solved)."""
    solve_rate_samples: int = Field(default=8, ge=1)
    """Number of graded attempts before a task's solve rate counts; tasks with fewer are kept."""
    min_strength: float | None = Field(default=None, ge=0, le=1)
    """Minimum test strength: share of wrong patches that a task's tests rejected in a validation with
    ``validation.wrong_patches``; tasks without one are kept."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        low, high = self.solve_rate_min, self.solve_rate_max
        if low is not None and high is not None and low > high:
            raise ValueError(f"solve_rate_min is {low:g}, above solve_rate_max, which is {high:g}")
        return self

    @property
    def uses_solve_rates(self) -> bool:
        """Return whether tasks are selected by their solve rate."""
        return self.solve_rate_min is not None or self.solve_rate_max is not None


def _renamed_format(value: object) -> object:
    """Return the current name of a tool format."""
    return "native" if value == "function_calling" else value


class AgentConfig(Section):
    """Prompt, tool format and limits of the agent loop."""

    prompt: Text = "compact_v1"
    """Versioned prompt in ``engine/agent/prompts``: ``deepswe_v1`` (full), ``deepswe_rllm_v1`` (rLLM's, for
    training), ``deepswe_r2e_v1`` (R2E-Gym's, for evaluation), ``compact_v1`` (tiny models),
    ``reproduction_v1`` and ``reproduction_compact_v1`` (ask for a test of the issue), ``frozenlake_v1``,
    ``frozenlake_compact_v1``."""
    tool_format: Annotated[Literal["xml", "native", "words"], BeforeValidator(_renamed_format)] = "xml"
    """Format of the model's tool calls: ``xml`` (R2E-Gym's, which DeepSWE used), ``native`` (the model's own
    function calling), ``words`` (``move up``; for tools whose arguments are single words)."""
    tools: Literal["r2e_gym", "openhands"] = "r2e_gym"
    """Names of the tools, as the policy was trained with them: ``r2e_gym`` (``file_editor``, ``execute_bash``
    with ``cmd``, ``search``, ``finish``) or ``openhands`` (``execute_bash`` with ``command``,
    ``str_replace_editor``, ``think``, ``finish``, and R2E-Gym's ``submit``)."""
    thinking: Literal["on", "off"] = "on"
    """``off`` asks for responses without thinking, by the convention of the model's family."""
    thinking_history: Literal["keep", "drop"] = "keep"
    """Thinking of earlier turns in later prompts; ``drop`` renders the conversation anew, so that a
    trajectory becomes several samples."""
    max_steps: int = Field(default=50, ge=1)
    """Maximum number of turns; the rollout then ends with ``max_steps``."""
    max_context: int = Field(default=65_536, ge=64)
    """Maximum length of the whole conversation, tokens; the rollout then ends with ``max_context``."""
    max_response: int = Field(default=16_384, ge=8)
    """Maximum length of one turn, tokens; the rollout then ends with ``max_response``."""
    min_response: int = Field(default=16, ge=1)
    """Minimum room for a turn, tokens (``max_response`` if that is lower); where less is left, the rollout
    ends with ``max_context``."""
    token_warning: int = Field(default=0, ge=0)
    """Remaining tokens of context below which every observation asks the model to submit; 0 never asks
    (rLLM: 4,768)."""
    command_timeout_s: float = Field(default=90.0, gt=0)
    """Timeout of one command, seconds; the agent receives the partial output."""
    rollout_timeout_s: float = Field(default=1200.0, gt=0)
    """Maximum wall time of a rollout, seconds; it then ends with ``rollout_timeout``."""
    observation_chars: int = Field(default=10_000, ge=200)
    """Maximum length of an observation, characters; head and tail are kept, the omitted part is counted."""
    observation_tokens: int = Field(default=8192, ge=64)
    """Maximum length of an observation, tokens; head and tail are kept, the omitted part is counted."""
    snippet_lines: int = Field(default=4, ge=0)
    """Lines of context that ``file_editor`` shows around an edit."""
    step_reminder: bool = True
    """Append ``Steps Remaining: N`` to every observation."""


AUDITED_SHARE = 8
"""Number of passing training rollouts per audit, while no tampering was caught."""
EVALUATION_DRAWS = 3
"""Maximum number of mutated runs of a submission in an evaluation; in training it is 1."""


class GradingConfig(Section):
    """Settings of grading."""

    timeout_s: float = Field(default=300.0, gt=0)
    """Time limit of a task's tests in training, seconds; a limit in the task's row takes precedence."""
    evaluation_timeout_s: float | None = Field(default=None, gt=0)
    """Time limit of a task's tests in evaluations, seconds; None uses ``timeout_s``."""
    map_rule: Literal["strict", "tolerant"] = "strict"
    """Comparison of the map of test outcomes (R2E-Gym): ``strict`` requires every test to end as expected,
    ``tolerant`` requires this only of tests expected to pass."""
    reuse_verdicts: bool = True
    """Reuse the verdict of an identical patch on a task proven deterministic."""
    max_parallel: int = Field(default=2, ge=1)
    """Maximum number of concurrent gradings."""
    own_box: bool = True
    """Grade tasks about the state of a system in the sandbox in which the agent worked, if the task asks for
    it (Harbor's ``environment_mode = "shared"``); else every patch is graded in a fresh sandbox."""
    counterfactual: Literal["off", "sample", "always"] = "sample"
    """Passing submissions to audit with mutated tests, which only a forgery passes. ``sample``: all of an
    evaluation and one in eight of training, all of a task and of a run once tampering was caught there;
    ``always``: all; ``off``: none."""


class RolloutConfig(Section):
    """Group size and concurrency of rollouts."""

    group_size: int = Field(default=8, ge=1)
    """Rollouts per task (group size)."""
    max_concurrent: int = Field(default=64, ge=1)
    """Maximum number of concurrent rollouts."""
    resume_in_flight: Literal["anew", "replay"] = "anew"
    """Rollouts that were in flight when an attempt of the run ended: the next attempt begins them ``anew``,
    or repeats their recorded actions in fresh sandboxes and continues from there (``replay``). With
    ``replay`` it also keeps the finished rollouts of iterations after the checkpoint (schedule ``sync``)."""
    workers: int = Field(default=1, ge=1, le=256)
    """Number of processes in which rollouts run; with 1 they run in the run's own."""
    launcher: Literal["local", "ray"] = "local"
    """Launcher of the workers: ``local``, the run itself on its machine; ``ray``, on nodes of the Ray cluster
    that the run is a job of."""
    worker_memory_mb: int = Field(default=0, ge=0)
    """Memory beyond which a worker is restarted, MiB; its rollouts start anew. 0 sets no limit."""

    @model_validator(mode="after")
    def _effective(self) -> Self:
        inert = [name for name in ("launcher", "worker_memory_mb") if getattr(self, name) != _default(name)]
        if self.workers == 1 and inert:
            raise ImpossibleSettingsError(
                Problem("has no effect without workers: leave it out, or set workers to 2 or more", name)
                for name in inert
            )
        return self


def _default(name: str) -> object:
    return RolloutConfig.model_fields[name].default


EARLY_STOP = 8
"""Number of first rollouts after which a run ends if all failed in the same way."""


class CollectionConfig(Section):
    """Tasks of a collection, reuse of earlier results, and repetition of rollouts."""

    tasks: tuple[Annotated[Text, Field(min_length=1, max_length=200)], ...] = ()
    """Tasks of the split to use, by ID or instance ID; empty uses all."""
    shuffle: bool = False
    """Shuffle the split's tasks by the run's seed before ``start_index`` and ``dataset.limit`` apply."""
    start_index: int = Field(default=0, ge=0)
    """Index of the first task to use."""
    skip: Literal["none", "finished", "solved"] = "none"
    """Reuse of results of the runs in ``skip_runs``: ``finished`` counts their graded rollouts towards
    ``rollout.group_size``, ``solved`` leaves out tasks that one of them solved."""
    skip_runs: tuple[Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")], ...] = ()
    """Earlier runs, by the names of their folders under the data folder's ``runs/``."""
    early_stop: int = Field(default=EARLY_STOP, ge=0)
    """Number of first rollouts after which the run fails with the reason if none of them had a readable tool
    call or none had room for a response; 0 disables the check, which models with random weights fail."""
    infra_retries: int = Field(default=1, ge=0)
    """Number of times that rollouts lost to infrastructure are repeated, after all others."""
    retry_temperatures: tuple[Annotated[float, Field(ge=0)], ...] = ()
    """Sampling temperatures of further attempts at a rollout that ended without submission, in order; the
    last attempt is kept (R2E-Gym's ``max_iterations`` = 3: temperature 0, then 0.1 and 0.2)."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.skip != "none" and not self.skip_runs:
            raise ImpossibleSettingsError(
                [Problem("no run is named: name earlier runs, or set skip to 'none'", "skip_runs")]
            )
        if self.skip == "none" and self.skip_runs:
            raise ImpossibleSettingsError([Problem("must not be 'none' while skip_runs names runs", "skip")])
        return self
