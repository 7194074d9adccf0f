"""Labels and comments of users on trajectories."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from webapp.rollouts.models.trajectories import Trajectory


class Annotation(models.Model):
    """A label (a few words, countable) or a comment on a trajectory or one of its steps."""

    class Kind(models.TextChoices):
        """Kind of the text."""

        LABEL = "label"
        COMMENT = "comment"

    trajectory = models.ForeignKey(Trajectory, on_delete=models.CASCADE, related_name="annotations")
    step_index = models.IntegerField(null=True, blank=True)
    """None for the whole trajectory."""
    kind = models.CharField(max_length=8, choices=Kind.choices)
    text = models.TextField()
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(
                fields=["trajectory", "step_index", "text"],
                condition=models.Q(kind="label"),
                name="annotation_step_label_key",
            ),
            models.UniqueConstraint(
                fields=["trajectory", "text"],
                condition=models.Q(kind="label", step_index=None),
                name="annotation_label_key",
            ),
        ]
        indexes = [
            models.Index(
                fields=["text", "trajectory"], condition=models.Q(kind="label"), name="annotation_label"
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} on trajectory {self.trajectory_id}"
