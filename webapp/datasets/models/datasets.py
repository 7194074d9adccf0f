"""Datasets and their tasks; answers sit in a table of their own because only some people may see them."""

from __future__ import annotations

from typing import Any

from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVector
from django.db import models
from django.db.models.functions import Left

INDEXED_CHARS = 50_000
"""Beginning of a text that a full-text index covers: a document has at most 1 MiB of words."""


class Dataset(models.Model):
    """A set of frozen tasks, mirrored from a folder under the data folder or made by an import."""

    name = models.CharField(max_length=200, unique=True)
    provenance: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict, blank=True)
    """Content of ``dataset.json``: sources, counts, versions; for an import the file and its format."""
    splits: models.JSONField[dict[str, int], dict[str, int]] = models.JSONField(default=dict, blank=True)
    """Split → number of its active tasks."""
    num_tasks = models.IntegerField(default=0)
    checksum = models.CharField(max_length=64, blank=True, default="")
    """SHA-256 over the files last synchronised; an unchanged folder is not read again."""
    run = models.ForeignKey(
        "webapp.Run", null=True, blank=True, on_delete=models.SET_NULL, related_name="datasets_made"
    )
    """The curation run that made it."""
    created_at = models.DateTimeField(auto_now_add=True)
    synced_at = models.DateTimeField(null=True, blank=True)
    health_checksum = models.CharField(max_length=64, blank=True, default="")
    """SHA-256 of the ``validation.jsonl`` last mirrored."""

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Task(models.Model):
    """One row of a dataset, without anything that gives the answer away."""

    dataset = models.ForeignKey(Dataset, on_delete=models.CASCADE, related_name="tasks")
    key = models.CharField(max_length=64)
    """The task's content hash: what events call ``task_id``."""
    instance_id = models.CharField(max_length=300)
    split = models.CharField(max_length=64)
    position = models.IntegerField(default=0)
    """Row number in the dataset."""
    repo = models.CharField(max_length=300, blank=True, default="")
    base_commit = models.CharField(max_length=100, blank=True, default="")
    problem_statement = models.TextField(blank=True, default="")
    image = models.CharField(max_length=500, blank=True, default="")
    workdir = models.CharField(max_length=300, blank=True, default="")
    difficulty: models.JSONField[dict[str, float], dict[str, float]] = models.JSONField(
        default=dict, blank=True
    )
    metadata: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict, blank=True)
    active = models.BooleanField(default=True)
    """False once a newer version of the dataset no longer has the row; its trajectories stay readable."""
    content = models.CharField(max_length=16, blank=True, default="")
    """Content hash of the row, see ``engine.events.health.content_hash``."""
    validation = models.ForeignKey(
        "webapp.Validation", null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    """The newest that counts for this content."""
    proof = models.ForeignKey(
        "webapp.Proof", null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    """The newest proof of mutated tests for this content."""
    health = models.CharField(max_length=16, blank=True, default="")
    """Status of that validation; empty while there is none."""
    quarantined = models.BooleanField(default=False)
    quarantine_reason = models.TextField(blank=True, default="")
    quarantine_by = models.CharField(max_length=150, blank=True, default="")
    """Person who decided; empty for a decision by validation."""
    quarantine_since = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["dataset_id", "position"]
        constraints = [models.UniqueConstraint(fields=["dataset", "key"], name="task_key")]
        indexes = [
            models.Index(fields=["dataset", "split", "position"], name="task_split"),
            models.Index(fields=["key"], name="task_by_key"),
            models.Index(fields=["dataset", "instance_id"], name="task_instance"),
            GinIndex(
                SearchVector(Left("problem_statement", INDEXED_CHARS), config="simple"),
                name="task_statement",
            ),
            models.Index(fields=["dataset", "health", "position"], name="task_health"),
            # What a dataset's health page counts, read from the index alone.
            models.Index(
                fields=["dataset"],
                include=["id", "position", "health", "quarantined", "validation"],
                condition=models.Q(active=True),
                name="task_standing",
            ),
            models.Index(
                fields=["dataset", "position"], condition=models.Q(quarantined=True), name="task_quarantined"
            ),
        ]

    def __str__(self) -> str:
        return self.instance_id


class TaskAnswer(models.Model):
    """The answer key of a task: shown to operators and administrators only."""

    task = models.OneToOneField(Task, on_delete=models.CASCADE, primary_key=True, related_name="answer")
    gold_patch = models.TextField(blank=True, default="")
    test_patch = models.TextField(blank=True, default="")
    test_files: models.JSONField[dict[str, str], dict[str, str]] = models.JSONField(default=dict, blank=True)
    binary_files: models.JSONField[dict[str, str], dict[str, str]] = models.JSONField(
        default=dict, blank=True
    )
    """Path → content in base64."""
    fail_to_pass: models.JSONField[list[str], list[str]] = models.JSONField(default=list, blank=True)
    pass_to_pass: models.JSONField[list[str], list[str]] = models.JSONField(default=list, blank=True)
    test_command = models.TextField(blank=True, default="")
    grade_rule = models.CharField(max_length=64, blank=True, default="")
    log_parser = models.CharField(max_length=300, blank=True, default="")
    """Parser of the test log; empty where a report has the outcomes."""
    expected: models.JSONField[dict[str, str], dict[str, str]] = models.JSONField(default=dict, blank=True)
    """Test → status of the whole map, for the rule ``map_equal``."""
    hidden_paths: models.JSONField[list[str], list[str]] = models.JSONField(default=list, blank=True)
    """Files of the image that no agent may see."""
    timeout_s = models.FloatField(null=True, blank=True)
    """Time for the tests, seconds, where the row sets one."""
    setup_patch = models.TextField(blank=True, default="")
    """Patch that turns the image into the task, applied before any use."""
    deterministic = models.BooleanField(default=False)
    own_box = models.BooleanField(default=False)
    """Whether the tests run in the sandbox in which the agent worked."""
    metadata: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict, blank=True)

    def __str__(self) -> str:
        return f"answer of task {self.task_id}"
