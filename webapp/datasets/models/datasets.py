"""Datasets and their tasks; answers have a separate table because only some roles may see them."""

from __future__ import annotations

from typing import Any

from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVector
from django.db import models
from django.db.models import Func, Value
from django.db.models.functions import Left

INDEXED_CHARS = 70_000
"""Characters of a statement that are indexed; PostgreSQL limits the words of a document to 1 MiB. Issues of
GitHub have at most 65,536."""
_PUNCTUATION = """!"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"""
STATEMENT_WORDS = SearchVector(
    Func(
        Left("problem_statement", INDEXED_CHARS),
        Value(_PUNCTUATION),
        Value(" " * len(_PUNCTUATION)),
        function="translate",
        output_field=models.TextField(),
    ),
    config="simple",
)
"""Words of a statement, as ``rollouts.selectors.query_words`` separates them."""


class Dataset(models.Model):
    """Set of frozen tasks, mirrored from a folder in the data folder or created by an import."""

    name = models.CharField(max_length=200, unique=True)
    provenance: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict, blank=True)
    """Content of ``dataset.json``: sources, counts, versions; for an import the file and its format."""
    splits: models.JSONField[dict[str, int], dict[str, int]] = models.JSONField(default=dict, blank=True)
    """Split → number of its active tasks."""
    num_tasks = models.IntegerField(default=0)
    checksum = models.CharField(max_length=64, blank=True, default="")
    """SHA-256 of the files at the last synchronisation; an unchanged folder is not read again."""
    run = models.ForeignKey(
        "webapp.Run", null=True, blank=True, on_delete=models.SET_NULL, related_name="datasets_made"
    )
    """Run that created the dataset."""
    created_at = models.DateTimeField(auto_now_add=True)
    synced_at = models.DateTimeField(null=True, blank=True)
    health_checksum = models.CharField(max_length=64, blank=True, default="")
    """SHA-256 of ``validation.jsonl`` when it was last mirrored."""

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Task(models.Model):
    """Row of a dataset, without its answer."""

    dataset = models.ForeignKey(Dataset, on_delete=models.CASCADE, related_name="tasks")
    key = models.CharField(max_length=64)
    """Content hash of the task; the ``task_id`` of events."""
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
    """False once the row is missing in a newer version of the dataset; its trajectories stay readable."""
    content = models.CharField(max_length=16, blank=True, default="")
    """Content hash of the row, see ``engine.events.health.content_hash``."""
    validation = models.ForeignKey(
        "webapp.Validation", null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    """Newest validation of this content."""
    proof = models.ForeignKey(
        "webapp.Proof", null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    """Newest proof of mutated tests for this content."""
    health = models.CharField(max_length=16, blank=True, default="")
    """Status of ``validation``; empty without one."""
    strength = models.FloatField(null=True, blank=True)
    """Share of wrong patches that the tests rejected in the newest validation that measured it."""
    quarantined = models.BooleanField(default=False)
    quarantine_reason = models.TextField(blank=True, default="")
    quarantine_by = models.CharField(max_length=150, blank=True, default="")
    """Name of the person who decided; empty for a decision by validation."""
    quarantine_since = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["dataset_id", "position"]
        constraints = [models.UniqueConstraint(fields=["dataset", "key"], name="task_key")]
        indexes = [
            models.Index(fields=["dataset", "split", "position"], name="task_split"),
            models.Index(fields=["key"], name="task_by_key"),
            models.Index(fields=["dataset", "instance_id"], name="task_instance"),
            GinIndex(STATEMENT_WORDS, name="task_statement"),
            models.Index(fields=["dataset", "health", "position"], name="task_health"),
            models.Index(fields=["dataset", "strength", "position"], name="task_strength"),
            # Covers the counts of a dataset's health page, which are read by an index-only scan.
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
    """Answer of a task, shown to operators and administrators only."""

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
    """Parser of the test log; empty if the outcomes are in a test report."""
    expected: models.JSONField[dict[str, str], dict[str, str]] = models.JSONField(default=dict, blank=True)
    """Test → expected status of all tests, for the rule ``map_equal``."""
    hidden_paths: models.JSONField[list[str], list[str]] = models.JSONField(default=list, blank=True)
    """Files of the image that are hidden from agents."""
    timeout_s = models.FloatField(null=True, blank=True)
    """Timeout of the tests, seconds; None if the row sets none."""
    setup_patch = models.TextField(blank=True, default="")
    """Patch applied to the image before any use."""
    deterministic = models.BooleanField(default=False)
    own_box = models.BooleanField(default=False)
    """True if the tests run in the agent's sandbox."""
    metadata: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict, blank=True)

    def __str__(self) -> str:
        return f"answer of task {self.task_id}"
