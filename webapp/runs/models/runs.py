"""Runs and their attempts. ``webapp.runs.services.states`` is the only writer of ``Run.state``."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models

from engine.types import RunKind, RunState
from webapp.core.models.choices import choices
from webapp.datasets.models.datasets import Dataset
from webapp.experiments.models import Experiment

_ORACLE = "oracle"
_WRITING_TESTS = "reproduction"
_ENDPOINT = "endpoint"
_NOOP = "noop"
_REPLAY = "replay"
_TEXT_POLICIES = frozenset({_ENDPOINT, _ORACLE, _NOOP, _REPLAY})


class Run(models.Model):
    """A job of one kind. Its row is authoritative; queue and processes follow it."""

    class Baseline(models.TextChoices):
        """Runs that a pinned run is the baseline of."""

        EXPERIMENT = "experiment", "the runs of its experiment"
        ALL = "all", "all runs without a baseline of their experiment"

    kind = models.CharField(max_length=16, choices=choices(RunKind))
    name = models.CharField(max_length=200)
    recipe = models.CharField(max_length=100, blank=True, default="")
    config: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict)
    """The resolved configuration, the engine's only input."""
    experiment = models.ForeignKey(
        Experiment, null=True, blank=True, on_delete=models.SET_NULL, related_name="runs"
    )
    arm = models.CharField(max_length=60, blank=True, default="")
    """Arm of its experiment; empty for runs that no arm started."""
    baseline_of = models.CharField(max_length=16, blank=True, default="", choices=Baseline.choices)
    """Runs that are compared with it; empty unless a person pinned it."""
    dataset = models.ForeignKey(
        Dataset, null=True, blank=True, on_delete=models.SET_NULL, related_name="runs"
    )
    parent = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="clones"
    )
    """The run it was cloned from."""
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )

    state = models.CharField(max_length=16, choices=choices(RunState), default=RunState.DRAFT.value)
    desired = models.CharField(
        max_length=8, choices=[("run", "run"), ("pause", "pause"), ("stop", "stop")], default="run"
    )
    """Requested state; the engine reads it with every heartbeat and acknowledges it by an event."""
    reason = models.TextField(blank=True, default="")
    """Reason for a failure or stop, in words."""
    reason_detail = models.TextField(blank=True, default="")
    """Last line of the log behind the reason; empty without one."""
    summary: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict, blank=True)

    epoch = models.IntegerField(default=0)
    """Number of the newest attempt; events of older attempts are refused."""
    last_seq = models.BigIntegerField(default=0)
    """Sequence number of the last stored event (``acked_seq`` in answers to the engine)."""
    engine_seq = models.BigIntegerField(default=0)
    """Sequence number of the engine's newest event at its last heartbeat; ``last_seq`` lags behind it."""
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    run_dir = models.CharField(max_length=1000, blank=True, default="")

    total_iterations = models.IntegerField(default=0)
    current_iteration = models.IntegerField(null=True, blank=True)
    """Newest iteration that began, counted from 0."""
    policy_version = models.IntegerField(null=True, blank=True)
    progress_message = models.CharField(max_length=500, blank=True, default="")
    progress_done = models.BigIntegerField(default=0)
    progress_total = models.BigIntegerField(default=0)
    progress_follows = models.CharField(max_length=500, blank=True, default="")
    """Phases that follow the current one, in words."""
    progress_seconds_left = models.FloatField(null=True, blank=True)
    """Estimated time until the end of the run, evaluations included; None while it is unknown."""
    collection: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict, blank=True)
    """State of its current phase's rollouts: ``engine.events.types.CollectionProgress``; empty otherwise."""
    funnel: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict, blank=True)
    """State of its curation: ``engine.events.curation.CurationFunnel``; empty otherwise."""
    selection: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict, blank=True)
    """Split → number of its tasks in use, and number left out by reason."""

    created_at = models.DateTimeField(auto_now_add=True)
    state_changed_at = models.DateTimeField(auto_now_add=True)
    queued_at = models.DateTimeField(null=True, blank=True)
    starting_at = models.DateTimeField(null=True, blank=True)
    running_at = models.DateTimeField(null=True, blank=True)
    """Time of the first start."""
    paused_at = models.DateTimeField(null=True, blank=True)
    """Time of the last acknowledged pause."""
    stopping_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    nudged_at = models.DateTimeField(null=True, blank=True)
    """Time when the reconciler last sent a task for the run."""

    tags: models.JSONField[list[str], list[str]] = models.JSONField(default=list, blank=True)
    """Tags set by people, sorted."""
    notes = models.TextField(blank=True, default="")
    """Text that people wrote about it."""
    archived_at = models.DateTimeField(null=True, blank=True)
    """Time of archiving; lists leave archived runs out."""
    archived_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    deleting_at = models.DateTimeField(null=True, blank=True)
    """Time when its deletion was requested. Its state is final then: some of its rows may be gone."""
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    """Time when a person acknowledged its failure; cleared when the run is resumed."""
    acknowledged_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["state", "-id"], name="run_state"),
            models.Index(fields=["kind", "-id"], name="run_kind"),
            models.Index(fields=["dataset", "-id"], name="run_dataset"),
            models.Index(fields=["experiment", "-id"], name="run_experiment"),
            models.Index(fields=["id"], condition=models.Q(deleting_at__isnull=False), name="run_deleting"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["baseline_of"], condition=models.Q(baseline_of="all"), name="run_baseline_of_all"
            ),
            models.UniqueConstraint(
                fields=["experiment"],
                condition=models.Q(baseline_of="experiment"),
                name="run_baseline_of_experiment",
            ),
        ]

    def __str__(self) -> str:
        return f"run {self.pk} ({self.name})"

    @property
    def launcher_backend(self) -> str:
        """Return the name of the launcher that starts it."""
        return str(self.config.get("launcher", {}).get("backend", "local"))

    @property
    def plays_answers(self) -> bool:
        """Return whether the policy is the oracle, whose rollouts contain the gold patches."""
        return self._policy_type == _ORACLE

    @property
    def answers_in_text(self) -> bool:
        """Return whether the policy is a chat policy, whose trajectories have no token ids."""
        return self._policy_type in _TEXT_POLICIES

    @property
    def uses_endpoint(self) -> bool:
        """Return whether the policy is a model behind an endpoint."""
        return self._policy_type == _ENDPOINT

    @property
    def writes_tests(self) -> bool:
        """Return whether its agents write tests instead of solutions."""
        return bool(self.config.get("environment", {}).get("type") == _WRITING_TESTS)

    @property
    def checks_rows(self) -> bool:
        """Return whether its rollouts check rows instead of a policy: their answers are scripted."""
        return self._policy_type in (_ORACLE, _NOOP)

    @property
    def must_pass(self) -> bool:
        """Return whether its rollouts must pass for a row to hold: they submit the gold patch."""
        return self._policy_type == _ORACLE

    @property
    def is_imported(self) -> bool:
        """Return whether its trajectories were imported from a file instead of sampled by a process."""
        return self._policy_type == _REPLAY and self.queued_at is None and self.starting_at is not None

    @property
    def _policy_type(self) -> str:
        return str(self.config.get("policy", {}).get("type", ""))

    @classmethod
    def playing_answers(cls) -> models.QuerySet[Run]:
        """Select the runs with ``plays_answers``."""
        return cls.objects.filter(config__policy__type=_ORACLE)

    @classmethod
    def writing_tests(cls) -> models.QuerySet[Run]:
        """Select the runs of testing agents, which solve no task."""
        return cls.objects.filter(config__environment__type=_WRITING_TESTS)


class RunAttempt(models.Model):
    """One process started for a run, identified by ``host`` and ``handle``."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="attempts")
    epoch = models.IntegerField()
    launcher = models.CharField(max_length=16, default="local")
    host = models.CharField(max_length=200, blank=True, default="")
    handle = models.CharField(max_length=200, blank=True, default="")
    """The launcher's identifier of it: ``pid:start`` for a local process, guarding against re-used pids; the
    submission id of a Ray job, whose ``host`` is the address of the cluster's dashboard."""
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    reason = models.TextField(blank=True, default="")
    """Reason for the attempt's start or end, in words."""
    reason_detail = models.TextField(blank=True, default="")
    """Last line of the log behind the reason; empty without one."""
    out_of_memory = models.BooleanField(default=False)
    """Whether it was killed because memory ran out."""
    condition = models.TextField(blank=True, default="")
    """Launcher's report about a process that waits for a cluster or is out of reach; else empty."""
    token_hash = models.CharField(max_length=64, blank=True, default="")
    """SHA-256 of its ingest token; kept after its end to answer late requests of its process."""

    class Meta:
        ordering = ["run_id", "epoch"]
        constraints = [models.UniqueConstraint(fields=["run", "epoch"], name="attempt_epoch")]

    def __str__(self) -> str:
        return f"attempt {self.epoch} of run {self.run_id}"
