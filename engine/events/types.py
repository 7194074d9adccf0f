"""Event types: the append-only records of a run, discriminated by ``type``.

Every event carries ``seq`` (1, 2, 3, … per run, across attempts) and ``epoch`` (the attempt). The
orchestrator is a run's only writer. Other trainers may post the same events to the ingest API.
To add one: a class here (``engine.events.sandboxes`` for those about sandboxes, ``engine.events.engines`` for
those about inference engines, ``engine.events.schedule`` for those about schedules,
``engine.events.system`` for those about the machine), a member of ``AnyEvent``, a projection in
``webapp.ingestion.services.projections``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, TypeAdapter

from engine.events.curation import CurationFunnel
from engine.events.engines import EnginesReported
from engine.events.health import ValidationRecord
from engine.events.record import BigInt, Int, Record, RunEvent
from engine.events.regrading import RegradeRecord
from engine.events.replay import ReplayRecord, SampledResponse
from engine.events.sandboxes import PoolStatus, SandboxesChanged
from engine.events.schedule import BatchSelected, GroupAdmitted, Timeline
from engine.events.system import SystemSampled
from engine.events.token_block import TokenField
from engine.events.token_trace import TraceField
from engine.types import (
    CounterfactualOutcome,
    FindingKind,
    TerminationReason,
    TestKind,
    TestOutcome,
    Verdict,
)


class TrajectoryRef(Record):
    """Key of the one terminal trajectory in a run."""

    iteration: Int = Field(ge=0)
    phase: str = Field(min_length=1, max_length=64)
    task_id: str = Field(min_length=1, max_length=64)
    index: Int = Field(ge=0)


class RunStarted(RunEvent):
    """An attempt began."""

    type: Literal["run_started"] = "run_started"
    host: str
    pid: Int
    resumed_from: Int | None = Field(default=None, ge=0)
    """Iteration of the checkpoint it resumed from."""
    rollouts_kept: Int | None = Field(default=None, ge=0)
    """Number of finished rollouts kept from earlier attempts; None in runs that resume from a checkpoint or
    start over."""
    total_iterations: Int = 0


class RunPlanned(RunEvent):
    """The number of iterations became known, in a run where it depends on the data."""

    type: Literal["run_planned"] = "run_planned"
    total_iterations: Int = Field(ge=0)


class CollectionProgress(Record):
    """State of the rollouts of a run's current phase.

    In training they are those of this attempt, in collections and evaluations those of all attempts.
    """

    graded: BigInt = Field(ge=0)
    """Rollouts with a verdict."""
    solved: BigInt = Field(ge=0)
    endings: dict[str, BigInt] = Field(default_factory=dict)
    """Termination reason → rollouts with a verdict; empty in events of earlier versions."""
    lost: BigInt = Field(ge=0)
    """Rollouts lost to infrastructure and not repeated yet."""
    queued: BigInt = Field(default=0, ge=0)
    """Rollouts that wait for a place among the active ones."""
    running: BigInt = Field(ge=0)
    """Active rollouts: those that start, sample or use tools."""
    starting: BigInt = Field(default=0, ge=0)
    """Rollouts that wait for their sandboxes."""
    sampling: BigInt = Field(default=0, ge=0)
    """Rollouts that wait for a response of the policy."""
    tools: BigInt = Field(default=0, ge=0)
    """Rollouts whose tool calls are carried out, and those between two phases."""
    grading: BigInt = Field(default=0, ge=0)
    """Rollouts that are being graded."""
    steps: BigInt = Field(ge=0)
    prompt_tokens: BigInt = Field(default=0, ge=0)
    """Tokens of the first prompts of finished rollouts; 0 in training."""
    generated_tokens: BigInt = Field(ge=0)
    """Tokens of responses; of finished rollouts only in collections and evaluations."""
    tokens_per_s: float | None = None
    """Tokens of all responses of the last minute, per second; None without any."""
    per_hour: float | None = None
    """Rollouts finished per hour, over the last ten minutes of this attempt; None until one has finished."""
    seconds_left: float | None = None
    """Time until the end at this rate; None while it is unknown."""
    cost: float | None = None
    """US dollars spent on finished rollouts; None where no price is known."""

    @property
    def live(self) -> tuple[tuple[str, float], ...]:
        """Return labels and numbers of rollouts by what they do, steps and rate; zeros are left out."""
        numbers = (
            ("queued", self.queued),
            ("starting", self.starting),
            ("sampling", self.sampling),
            ("in tools", self.tools),
            ("grading", self.grading),
            ("steps", self.steps),
            ("tokens/s", round(self.tokens_per_s or 0.0)),
        )
        return tuple(pair for pair in numbers if pair[1])


class RunProgress(RunEvent):
    """Progress of a run's current phase."""

    type: Literal["run_progress"] = "run_progress"
    message: str
    done: BigInt
    total: BigInt
    follows: str = ""
    """Phases that follow this one, in words."""
    seconds_left: float | None = Field(default=None, ge=0)
    """Estimated time until the end of the run, evaluations included; None while it is unknown."""
    collection: CollectionProgress | None = None
    """State of the phase's rollouts; None in phases without any."""
    funnel: CurationFunnel | None = None
    """State of a curation; None where it is unchanged, and in other runs."""


class RunPaused(RunEvent):
    """The run acknowledged a pause; nothing is in flight."""

    type: Literal["run_paused"] = "run_paused"


class RunResumed(RunEvent):
    """The run continues after a pause."""

    type: Literal["run_resumed"] = "run_resumed"


class RunFinished(RunEvent):
    """The run ended by itself."""

    type: Literal["run_finished"] = "run_finished"
    state: Literal["succeeded", "failed", "stopped"]
    reason: str = ""
    summary: dict[str, float | BigInt | str | None] = Field(default_factory=dict)


class IterationStarted(RunEvent):
    """Collection of an iteration began."""

    type: Literal["iteration_started"] = "iteration_started"
    iteration: Int
    policy_version: Int
    task_ids: list[str]


class TrajectoryStarted(RunEvent):
    """A rollout was admitted; replaces the data of older attempts under the same key."""

    type: Literal["trajectory_started"] = "trajectory_started"
    ref: TrajectoryRef
    sandbox_id: str = ""


class StepFinished(RunEvent):
    """A turn of a live trajectory was completed."""

    type: Literal["step_finished"] = "step_finished"
    ref: TrajectoryRef
    index: Int = Field(ge=0)
    replayed: bool = False
    """Whether the step was recorded by an earlier attempt and reproduced in a fresh sandbox."""
    thought: str
    response: str
    tool: str = ""
    """Tool name; empty when the response could not be parsed."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    observation: str
    error: str = ""
    exit_code: Int | None = None
    done: bool = False
    prompt_tokens: Int = 0
    cached_tokens: Int = 0
    """Tokens of the prompt that came from the endpoint's cache."""
    generated_tokens: Int = 0
    thinking_tokens: Int | None = 0
    """None where they are unknown: a chat policy's endpoint does not report them."""
    cost: FiniteFloat | None = None
    """US dollars; None where no price is known."""
    provider_state: dict[str, Any] | None = None
    """Opaque state of the provider (signatures, encrypted reasoning), returned with its message unchanged."""
    truncated_chars: Int = 0
    model_seconds: float = 0.0
    tool_seconds: float = 0.0
    policy_version: Int = 0
    sampled: SampledResponse | None = None
    """The response as sampled from the policy; with ``rollout.resume_in_flight`` ``replay`` only."""


class TestOutcomeRecord(Record):
    """Outcome of one required test."""

    test_id: str
    kind: TestKind
    outcome: TestOutcome
    seconds: float = 0.0


class FindingRecord(Record):
    """One sign of tampering."""

    kind: FindingKind
    detail: str
    step: Int | None = None
    """Index of the step that shows it; None for a finding in the patch or in grading."""


class OpeningMessageRecord(Record):
    """A message before the first response."""

    role: str = Field(max_length=32)
    """``system``, ``user``, or ``tools`` for functions that the chat template declares (JSON)."""
    content: str


class TrajectoryFinished(RunEvent):
    """Terminal record of a trajectory; there is exactly one."""

    type: Literal["trajectory_finished"] = "trajectory_finished"
    ref: TrajectoryRef
    termination: TerminationReason
    verdict: Verdict | None
    reward: FiniteFloat | None
    num_steps: Int
    unparsed_steps: Int = 0
    """Number of steps without a readable tool call."""
    forks: Int = 0
    """Number of times that the conversation was rendered anew; each adds one training sample."""
    patch: str = ""
    tests: list[TestOutcomeRecord] = Field(default_factory=list)
    test_log: str = ""
    """Test log; head and tail of a long one."""
    whole_test_log: str = ""
    """Complete long log: UTF-8 text, zlib, base64; empty where ``test_log`` is complete."""
    findings: list[FindingRecord] = Field(default_factory=list)
    detail: str = ""
    error: str = ""
    failure: str = ""
    """Kind of the underlying sandbox failure, e.g. ``memory``; empty when there was none."""
    reused_verdict: bool = False
    counterfactual: CounterfactualOutcome | None = None
    """Result of the audit with mutated tests; None for submissions without a reward."""
    extra_runs: Int = 0
    """Runs with mutated tests."""
    attempts: Int = 1
    prompt: str = Field(default="", max_length=64)
    """Name of the prompt, version included; empty when unknown."""
    prompt_hash: str = Field(default="", max_length=64)
    """Hash of the prompt's texts, tools and tool format, as sent to the model."""
    opening: list[OpeningMessageRecord] = Field(default_factory=list)
    """Messages before the first response, as sent to the model; empty where they are unknown."""
    replay: ReplayRecord | None = None
    """Replay of an earlier attempt's steps; None where the rollout began anew."""
    imported: dict[str, Any] | None = None
    """Fields of an imported file that have no field of their own; None in trajectories of this product."""
    prompt_tokens: BigInt = 0
    """Tokens of the first prompt."""
    cached_tokens: BigInt = 0
    """Tokens from the endpoint's cache, over all prompts."""
    generated_tokens: BigInt = 0
    thinking_tokens: BigInt | None = 0
    """Sum over the steps; None where one is unknown."""
    cost: FiniteFloat | None = None
    """US dollars of the steps whose cost is known; None without any."""
    policy_version_min: Int = 0
    policy_version_max: Int = 0
    queue_seconds: float = 0.0
    sandbox_seconds: float = 0.0
    pull_seconds: float = 0.0
    start_seconds: float = 0.0
    model_seconds: float = 0.0
    tool_seconds: float = 0.0
    grading_seconds: float = 0.0
    graded_seconds: float = 0.0
    """Part of ``grading_seconds`` without the wait for a place; 0 for a re-used verdict."""
    extra_grading_seconds: float = 0.0
    """Part of ``graded_seconds`` spent on runs with mutated tests."""
    total_seconds: float = 0.0
    tokens: TokenField | None = None
    """Prompt and sampled tokens; in JSON one block of base64."""


class GroupMember(Record):
    """Treatment of one sibling by the objective."""

    index: Int
    advantage: float | None
    """None when infrastructure failed or the trajectory was dropped from its group."""
    baseline: float | None
    loss_mask: bool
    mask_reason: str = ""
    """Reason why it carries no loss: a termination reason or ``infrastructure``; empty otherwise."""


class GroupFinished(RunEvent):
    """The advantages of a group were computed."""

    type: Literal["group_finished"] = "group_finished"
    iteration: Int
    """Iteration in the keys of its trajectories."""
    phase: str
    task_id: str
    members: list[GroupMember]


class TrajectoryTrained(RunEvent):
    """An update trained on a trajectory whose tokens are traced (``trainer.traced_groups``)."""

    type: Literal["trajectory_trained"] = "trajectory_trained"
    ref: TrajectoryRef
    iteration: Int = Field(ge=0)
    """Iteration of the update."""
    step: Int = Field(ge=0)
    """Index of the optimizer step, counted among those with a gradient."""
    losses: list[FiniteFloat] = Field(max_length=100_000)
    """Loss of every such step of the update; ``loss/value`` is their mean."""
    weight: FiniteFloat
    """Weight of the trajectory in the loss of its step."""
    tokens: TraceField


class IterationFinished(RunEvent):
    """The update of an iteration was made (or skipped); all metrics are ``area/name``."""

    type: Literal["iteration_finished"] = "iteration_finished"
    iteration: Int
    policy_version: Int
    metrics: dict[str, float]
    """E.g. reward/mean, solve/none, solve/partial, solve/all, steps/mean, tokens/response_mean,
    tokens/thinking_per_step, termination/<reason>, time/{rollout,grading,update}, loss/value,
    clip/high, clip/low, grad/norm, entropy/mean, funnel/*."""
    timeline: Timeline | None = None
    """None in runs of other kinds than training, and in events of earlier versions."""


class PassAtK(Record):
    """Unbiased probability that at least one of k attempts solves a task."""

    k: Int = Field(ge=1)
    rate: float
    interval_low: float
    interval_high: float


class EvaluationFinished(RunEvent):
    """A split was evaluated at one policy version."""

    type: Literal["evaluation_finished"] = "evaluation_finished"
    iteration: Int
    name: str
    """Name of the evaluation, e.g. ``heldout`` or ``train``."""
    policy_version: Int
    num_samples: Int
    num_tasks: Int
    num_solved: Int
    solve_rate: float
    interval_low: float
    interval_high: float
    """95 % interval that treats tasks as the sampled units (cluster bootstrap or normal over tasks)."""
    pass_at_k: list[PassAtK] = Field(default_factory=list)
    """pass@k for some k, with intervals of the same kind."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Metrics of its rollouts and of the policy, named as those of an iteration."""


class CheckpointSaved(RunEvent):
    """A checkpoint is complete on disk."""

    type: Literal["checkpoint_saved"] = "checkpoint_saved"
    iteration: Int
    policy_version: Int
    path: str
    checksum: str


class TasksSelected(RunEvent):
    """Selection of a split's tasks for a run; resumed attempts keep it."""

    type: Literal["tasks_selected"] = "tasks_selected"
    dataset: str
    split: str
    num_tasks: Int
    """Tasks in the split."""
    num_selected: Int
    num_quarantined: Int = 0
    """Tasks left out because of quarantine."""
    num_outside: Int = 0
    """Tasks left out because their solve rate is outside the configured range."""
    num_weak: Int = 0
    """Tasks left out because their tests are weaker than configured."""
    num_unmeasured: Int = 0
    """Tasks selected with too few measured attempts for a solve rate; 0 when solve rates are not used."""


class TaskValidated(RunEvent):
    """A row of a dataset was graded without changes and with its gold patch."""

    type: Literal["task_validated"] = "task_validated"
    record: ValidationRecord


class ScoreRecord(Record):
    """Score of a verifier for one trajectory, or the reason why there is none.

    A judge sets ``p_yes``, tests set the numbers of passes.
    """

    p_yes: float | None = Field(default=None, ge=0, le=1)
    """P(YES) / (P(YES) + P(NO)); None where there is no score."""
    regression_passes: Int | None = Field(default=None, ge=0)
    """Regression tests that passed under the patch; None where there is no score."""
    regression_tests: Int | None = Field(default=None, ge=0)
    regression_status: str = Field(default="", max_length=32)
    """Outcome of the run of regression tests: ``ran``, ``timed_out``, …"""
    reproduction_passes: Int | None = Field(default=None, ge=0)
    """Tests of testing agents that passed; None without a score, or where no reproduction tests are used."""
    reproduction_tests: Int | None = Field(default=None, ge=0)
    detail: str = ""
    """Test runs that did not finish, with the reasons."""
    yes_logprob: float | None = None
    no_logprob: float | None = None
    error: str = ""
    attempts: Int = Field(default=1, ge=1)
    prompt_tokens: BigInt = Field(default=0, ge=0)
    shortened: Int = Field(default=0, ge=0)
    """Number of pieces of the trajectory that were replaced or removed so that it fits."""
    cost: float | None = None
    """US dollars; None where no price is known."""
    resolved: bool | None = None
    """Whether grading passed the trajectory; None where it was not graded. Verifiers do not read it."""


class TrajectoryScored(RunEvent):
    """A verifier judged a trajectory of another run; a later event about the same one replaces it."""

    type: Literal["trajectory_scored"] = "trajectory_scored"
    source: str = Field(min_length=1, max_length=200)
    """Run of the trajectory, by its folder's name."""
    source_epoch: Int | None = None
    """Attempt of that run that made the trajectory, as a repetition in a later attempt has the same ``ref``.
    None in events of earlier versions."""
    ref: TrajectoryRef
    score: ScoreRecord


class ExaminedTestRecord(Record):
    """Finding on one reproduction test: whether it is kept, and its results on graded candidates."""

    digest: str = Field(max_length=64)
    """Hash of the test file."""
    rejection: str = Field(default="", max_length=32)
    """Reason why it is not kept; empty where it is."""
    detail: str = ""
    tests: Int = Field(default=0, ge=0)
    """Tests of the file that fail on the untouched repository; they alone count."""
    good: Int = Field(default=0, ge=0)
    """Graded candidates that resolve the task."""
    good_passed: Int = Field(default=0, ge=0)
    bad: Int = Field(default=0, ge=0)
    """Other graded candidates."""
    bad_passed: Int = Field(default=0, ge=0)

    @property
    def is_toxic(self) -> bool:
        """Return whether every candidate that resolves the task fails a kept test; False without any."""
        return not self.rejection and self.good > 0 and self.good_passed == 0


class TestExamined(RunEvent):
    """A verifier examined the test that a testing agent wrote; a later event about it replaces it."""

    __test__ = False
    type: Literal["test_examined"] = "test_examined"
    source: str = Field(min_length=1, max_length=200)
    """Run of the testing agent, by its folder's name."""
    source_epoch: Int | None = None
    """Attempt of that run that wrote the test. None in events of earlier versions."""
    ref: TrajectoryRef
    """Trajectory of the testing agent."""
    test: ExaminedTestRecord


class TrajectoryRegraded(RunEvent):
    """The patch of another run's trajectory was graded again; a later event about it replaces it."""

    type: Literal["trajectory_regraded"] = "trajectory_regraded"
    source: str = Field(min_length=1, max_length=200)
    """Run of the trajectory, by its folder's name."""
    source_epoch: Int | None = None
    """Attempt of that run that made the trajectory."""
    ref: TrajectoryRef
    regrade: RegradeRecord


class Alert(RunEvent):
    """A condition that a person should look at."""

    type: Literal["alert"] = "alert"
    severity: Literal["info", "warning", "error"]
    code: str
    message: str
    iteration: Int | None = None
    task_ids: list[str] = Field(default_factory=list)
    """Tasks of that iteration whose groups to inspect."""


AnyEvent = (
    RunStarted
    | RunPlanned
    | TasksSelected
    | TaskValidated
    | RunProgress
    | RunPaused
    | RunResumed
    | RunFinished
    | IterationStarted
    | GroupAdmitted
    | BatchSelected
    | TrajectoryStarted
    | StepFinished
    | TrajectoryFinished
    | GroupFinished
    | TrajectoryTrained
    | IterationFinished
    | EvaluationFinished
    | CheckpointSaved
    | SandboxesChanged
    | PoolStatus
    | EnginesReported
    | SystemSampled
    | TrajectoryScored
    | TestExamined
    | TrajectoryRegraded
    | Alert
)
Event = Annotated[AnyEvent, Field(discriminator="type")]
EVENT_ADAPTER: TypeAdapter[AnyEvent] = TypeAdapter(Event)
