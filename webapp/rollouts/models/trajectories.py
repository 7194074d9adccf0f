"""Groups, trajectories, steps, test results and tokens of rollouts.

Columns by which pages filter, sort or plot are computed at ingest, never derived from text later. The
large tables (steps, tests, tokens) have natural keys and are filled with COPY.
"""

from __future__ import annotations

import zlib
from typing import Any

from django.db import models

from engine.events.token_block import decode
from engine.events.token_trace import TraceRecord, decode_trace
from engine.tokens import TokenRecord
from engine.types import CounterfactualOutcome, TerminationReason, TestKind, TestOutcome, Verdict
from webapp.core.models.choices import choices
from webapp.datasets.models.datasets import Task
from webapp.runs.models.runs import Run


class Group(models.Model):
    """The sibling rollouts of one task in one iteration (or one evaluation)."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="groups", db_index=False)
    iteration = models.IntegerField()
    phase = models.CharField(max_length=64)
    """``train`` or ``eval:<name>``."""
    task_key = models.CharField(max_length=64)
    task = models.ForeignKey(
        Task, null=True, blank=True, on_delete=models.SET_NULL, related_name="groups", db_index=False
    )
    size = models.IntegerField(default=0)
    """Siblings that were started."""
    num_finished = models.IntegerField(default=0)
    """Siblings that ended, except cancelled ones."""
    num_graded = models.IntegerField(default=0)
    """Siblings with a reward: infrastructure failures have none."""
    num_solved = models.IntegerField(default=0)
    num_cut_short = models.IntegerField(default=0)
    """Graded siblings that a time limit ended unsolved: a faster machine may solve the task."""
    num_masked = models.IntegerField(default=0)
    """Siblings that the objective excluded from the loss."""
    mean_reward = models.FloatField(null=True, blank=True)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)
    """Time at which the last sibling ended; empty while one is live."""

    class Meta:
        ordering = ["run_id", "iteration", "phase", "id"]
        constraints = [
            models.UniqueConstraint(fields=["run", "phase", "iteration", "task_key"], name="group_key")
        ]
        indexes = [
            # Covering index: solve rates of tasks are sums over it, without reads of the table.
            models.Index(
                fields=["task"],
                include=["run", "num_graded", "num_solved", "num_cut_short"],
                name="group_solved",
            )
        ]

    @property
    def num_cancelled(self) -> int:
        """Return the number of cancelled siblings; valid once no sibling is live."""
        return self.size - self.num_finished

    def __str__(self) -> str:
        return f"group {self.task_key} in {self.phase} {self.iteration} of run {self.run_id}"


PAID = models.Q(cost__isnull=False) | models.Q(cached_tokens__gt=0)
"""Trajectories with a cost or cached tokens; PostgreSQL uses the index of their sums for this condition."""


class Trajectory(models.Model):
    """Record of one rollout, unique by (run, iteration, phase, task_key, index); retries reuse the row."""

    class State(models.TextChoices):
        """State of the rollout."""

        RUNNING = "running"
        FINISHED = "finished"

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="trajectories", db_index=False)
    group = models.ForeignKey(Group, on_delete=models.CASCADE, related_name="trajectories")
    task = models.ForeignKey(
        Task, null=True, blank=True, on_delete=models.SET_NULL, related_name="trajectories", db_index=False
    )
    """None while the task's dataset is not synchronised."""
    iteration = models.IntegerField()
    phase = models.CharField(max_length=64)
    task_key = models.CharField(max_length=64)
    index = models.IntegerField()
    epoch = models.IntegerField()
    """Attempt of the run that produced the trajectory."""
    state = models.CharField(max_length=8, choices=State.choices, default=State.RUNNING)
    sandbox_id = models.CharField(max_length=200, blank=True, default="")
    started_at = models.DateTimeField()
    active_at = models.DateTimeField()
    """Time of the last step, start or end."""
    finished_at = models.DateTimeField(null=True, blank=True)

    termination = models.CharField(max_length=16, choices=choices(TerminationReason), blank=True, default="")
    """Empty while the rollout runs."""
    verdict = models.CharField(max_length=16, choices=choices(Verdict), blank=True, default="")
    """Empty when nothing was graded."""
    reward = models.FloatField(null=True, blank=True)
    num_steps = models.IntegerField(default=0)
    patch = models.TextField(blank=True, default="")
    patch_hash = models.CharField(max_length=64, blank=True, default="")
    """Hash of the patch's effect (``engine.patches.sections.submission_hash``); empty without a patch."""
    num_tests = models.IntegerField(default=0)
    num_tests_passed = models.IntegerField(default=0)
    test_log = models.TextField(blank=True, default="")
    detail = models.TextField(blank=True, default="")
    findings: models.JSONField[list[dict[str, Any]], list[dict[str, Any]]] = models.JSONField(
        default=list, blank=True
    )
    """Signs of tampering: ``{kind, detail, step}`` each, in order."""
    error = models.TextField(blank=True, default="")
    failure = models.CharField(max_length=32, blank=True, default="")
    """Kind of the sandbox failure that ended the rollout, see ``engine.events.failures``."""
    reused_verdict = models.BooleanField(default=False)
    counterfactual = models.CharField(
        max_length=16, choices=choices(CounterfactualOutcome), blank=True, default=""
    )
    """Result of the audit with mutated tests; empty for trajectories without a reward."""
    extra_runs = models.IntegerField(default=0)
    """Runs with mutated tests."""
    attempts = models.IntegerField(default=1)
    """Sandboxes tried."""
    replay: models.JSONField[dict[str, Any] | None, dict[str, Any] | None] = models.JSONField(
        null=True, blank=True
    )
    """Replay of an earlier attempt's steps, see ``engine.events.replay``; None without a replay."""
    prompt = models.CharField(max_length=64, blank=True, default="")
    """Name of the prompt, version included; empty when unknown."""
    prompt_hash = models.CharField(max_length=64, blank=True, default="")
    """Hash of the prompt's texts, tools and tool format."""

    prompt_tokens = models.BigIntegerField(default=0)
    cached_tokens = models.BigIntegerField(default=0)
    """Prompt tokens from an endpoint's cache, over all steps."""
    generated_tokens = models.BigIntegerField(default=0)
    context_tokens = models.BigIntegerField(default=0)
    """Tokens of the longest context: prompt and response of one step."""
    thinking_tokens = models.BigIntegerField(null=True, blank=True, default=0)
    """None where an endpoint does not report them."""
    cost = models.FloatField(null=True, blank=True)
    """US dollars; None where no price is known."""
    policy_version_min = models.IntegerField(default=0)
    policy_version_max = models.IntegerField(default=0)
    trained_iteration = models.IntegerField(null=True, blank=True)
    """Iteration whose update had it in its batch; None if batches are not reported (schedule ``sync``)."""
    trained_version = models.IntegerField(null=True, blank=True)
    """Policy version before that update."""

    queue_seconds = models.FloatField(default=0.0)
    sandbox_seconds = models.FloatField(default=0.0)
    pull_seconds = models.FloatField(default=0.0)
    start_seconds = models.FloatField(default=0.0)
    """Image pull and start of the sandbox: parts of ``sandbox_seconds``."""
    model_seconds = models.FloatField(default=0.0)
    tool_seconds = models.FloatField(default=0.0)
    grading_seconds = models.FloatField(default=0.0)
    extra_grading_seconds = models.FloatField(default=0.0)
    """Part of ``grading_seconds`` spent on runs with mutated tests."""
    total_seconds = models.FloatField(default=0.0)

    advantage = models.FloatField(null=True, blank=True)
    baseline = models.FloatField(null=True, blank=True)
    loss_mask = models.BooleanField(null=True, blank=True)
    """False if the trajectory carried no loss; None before the update, and always for evaluations."""
    mask_reason = models.CharField(max_length=64, blank=True, default="")

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["run", "phase", "iteration", "task_key", "index"], name="trajectory_key"
            )
        ]
        indexes = [
            models.Index(fields=["run", "-id"], name="trajectory_newest"),
            models.Index(fields=["run", "verdict", "-id"], name="trajectory_verdict"),
            models.Index(fields=["run", "termination", "-id"], name="trajectory_termination"),
            models.Index(fields=["task", "-id"], name="trajectory_task"),
            models.Index(
                fields=["run", "active_at"], condition=models.Q(state="running"), name="trajectory_live"
            ),
            models.Index(fields=["run", "-id"], condition=~models.Q(findings=[]), name="trajectory_findings"),
            models.Index(
                fields=["run"], include=["cost", "cached_tokens"], condition=PAID, name="trajectory_paid"
            ),
        ]

    def __str__(self) -> str:
        return f"trajectory {self.pk}: {self.task_key} #{self.index}"

    @property
    def trained(self) -> bool | None:
        """Return whether the trajectory contributed a gradient; None before the update and in evaluations."""
        return None if self.loss_mask is None else self.loss_mask and bool(self.advantage)


class Step(models.Model):
    """One turn: thought, action, observation."""

    pk = models.CompositePrimaryKey("trajectory_id", "index")
    trajectory = models.ForeignKey(Trajectory, on_delete=models.CASCADE, related_name="steps", db_index=False)
    index = models.IntegerField()
    time = models.DateTimeField()
    """Time of completion."""
    action = models.CharField(max_length=16)
    """Kind of action: command, search, view, edit, finish, other; ``none`` when nothing was parsed."""
    tool = models.CharField(max_length=64, blank=True, default="")
    arguments: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict, blank=True)
    thought = models.TextField(blank=True, default="")
    response = models.TextField(blank=True, default="")
    """The model's raw text of this turn."""
    observation = models.TextField(blank=True, default="")
    error = models.TextField(blank=True, default="")
    exit_code = models.IntegerField(null=True, blank=True)
    done = models.BooleanField(default=False)
    prompt_tokens = models.IntegerField(default=0)
    cached_tokens = models.IntegerField(default=0)
    """Prompt tokens from an endpoint's cache."""
    generated_tokens = models.IntegerField(default=0)
    thinking_tokens = models.IntegerField(null=True, blank=True, default=0)
    """None where an endpoint does not report them."""
    cost = models.FloatField(null=True, blank=True)
    """US dollars; None where no price is known."""
    provider_state: models.JSONField[dict[str, Any] | None, dict[str, Any] | None] = models.JSONField(
        null=True, blank=True
    )
    """Opaque provider state (signatures, encrypted reasoning), sent back with its message; None without."""
    truncated_chars = models.IntegerField(default=0)
    model_seconds = models.FloatField(default=0.0)
    tool_seconds = models.FloatField(default=0.0)
    policy_version = models.IntegerField(default=0)
    action_hash = models.CharField(max_length=16, blank=True, default="")
    """Hash of tool and arguments: equal for equal calls, also of siblings."""

    class Meta:
        ordering = ["trajectory_id", "index"]

    def __str__(self) -> str:
        return f"step {self.index} of trajectory {self.trajectory_id}"


class TestResult(models.Model):
    """Outcome of one required test."""

    __test__ = False

    pk = models.CompositePrimaryKey("trajectory_id", "position")
    trajectory = models.ForeignKey(
        Trajectory, on_delete=models.CASCADE, related_name="test_results", db_index=False
    )
    position = models.IntegerField()
    test_id = models.TextField()
    kind = models.CharField(max_length=16, choices=choices(TestKind))
    outcome = models.CharField(max_length=16, choices=choices(TestOutcome))
    seconds = models.FloatField(default=0.0)

    class Meta:
        ordering = ["trajectory_id", "position"]

    def __str__(self) -> str:
        return f"{self.test_id}: {self.outcome}"


class TestLog(models.Model):
    """Complete test log of a trajectory whose ``Trajectory.test_log`` is shortened."""

    __test__ = False

    trajectory = models.OneToOneField(
        Trajectory, on_delete=models.CASCADE, primary_key=True, related_name="whole_log"
    )
    chars = models.IntegerField()
    data = models.BinaryField()
    """UTF-8 text, zlib-compressed."""

    def __str__(self) -> str:
        return f"{self.chars} characters of trajectory {self.trajectory_id}'s test log"

    @property
    def text(self) -> str:
        """Return the complete log."""
        return zlib.decompress(bytes(self.data)).decode("utf-8", "replace")


class TrajectoryOpening(models.Model):
    """Messages before a trajectory's first response, as the model saw them."""

    trajectory = models.OneToOneField(
        Trajectory, on_delete=models.CASCADE, primary_key=True, related_name="opening"
    )
    messages: models.JSONField[list[dict[str, str]], list[dict[str, str]]] = models.JSONField()
    """``{role, content}`` each: ``system``, ``user``, or ``tools`` for declared functions (JSON)."""

    def __str__(self) -> str:
        return f"opening of trajectory {self.trajectory_id}"


class ImportedFields(models.Model):
    """Fields of an imported trajectory's file that have no column; trajectories of runs have no such row."""

    trajectory = models.OneToOneField(
        Trajectory, on_delete=models.CASCADE, primary_key=True, related_name="imported_fields"
    )
    fields: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField()

    def __str__(self) -> str:
        return f"imported fields of trajectory {self.trajectory_id}"


class TokenBlob(models.Model):
    """The tokens of a trajectory as one compressed block (``engine.events.token_block``)."""

    trajectory = models.OneToOneField(
        Trajectory, on_delete=models.CASCADE, primary_key=True, related_name="token_blob"
    )
    length = models.IntegerField()
    """Number of tokens."""
    samples = models.IntegerField(default=1)
    """Number of training samples: more than 1 where the conversation was rendered anew."""
    data = models.BinaryField()
    """The block. Its storage is EXTERNAL, because PostgreSQL cannot compress it further."""

    def __str__(self) -> str:
        return f"{self.length} tokens of trajectory {self.trajectory_id}"

    @property
    def record(self) -> TokenRecord:
        """Decode the block."""
        return decode(bytes(self.data))


class TokenTrace(models.Model):
    """Inputs of the losses of a trained trajectory's sampled tokens (``engine.events.token_trace``)."""

    trajectory = models.OneToOneField(
        Trajectory, on_delete=models.CASCADE, primary_key=True, related_name="token_trace"
    )
    iteration = models.IntegerField()
    """Iteration of the update."""
    step = models.IntegerField()
    """Index of the optimizer step, counted among those with a gradient."""
    losses: models.JSONField[list[float], list[float]] = models.JSONField()
    """Loss of every such step of the update."""
    weight = models.FloatField()
    """Weight of the trajectory in the loss of its step."""
    length = models.IntegerField()
    """Number of sampled tokens."""
    data = models.BinaryField()
    """The block. Its storage is EXTERNAL, because PostgreSQL cannot compress it further."""

    def __str__(self) -> str:
        return f"trace of {self.length} tokens of trajectory {self.trajectory_id}"

    @property
    def record(self) -> TraceRecord:
        """Decode the block."""
        return decode_trace(bytes(self.data))
