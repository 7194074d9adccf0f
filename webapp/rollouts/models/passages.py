"""Words of finished trajectories, for full-text search."""

from __future__ import annotations

from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVectorField
from django.db import models

from webapp.rollouts.models.trajectories import Trajectory


class Passage(models.Model):
    """Words of consecutive steps of a trajectory, or of its patch; long texts have several passages.

    The large vectors are stored out of line, so that the table itself stays small: a search for frequent
    words reads many of its rows.
    """

    class Place(models.TextChoices):
        """Kind of the text."""

        THOUGHTS = "thoughts"
        ACTIONS = "actions"
        OBSERVATIONS = "observations"
        PATCHES = "patches"

    pk = models.CompositePrimaryKey("trajectory_id", "place", "number")
    trajectory = models.ForeignKey(
        Trajectory, on_delete=models.CASCADE, related_name="passages", db_index=False
    )
    place = models.CharField(max_length=12, choices=Place.choices)
    number = models.IntegerField()
    """Position among the passages of the same place."""
    first_step = models.IntegerField(null=True)
    """None for patches."""
    last_step = models.IntegerField(null=True)
    words = SearchVectorField()

    class Meta:
        ordering = ["trajectory_id", "place", "number"]
        indexes = [GinIndex(fields=["words"], name="passage_words")]

    def __str__(self) -> str:
        return f"{self.place} {self.number} of trajectory {self.trajectory_id}"
