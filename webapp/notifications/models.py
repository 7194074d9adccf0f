"""Notifications that people want, and the messages sent for them."""

from __future__ import annotations

import uuid
from typing import Any

from django.conf import settings
from django.db import models

from webapp.experiments.models import Experiment
from webapp.runs.models.runs import Run

ALL_ALERTS = "*"


class Notification(models.Model):
    """Events of runs about which one address is told."""

    class Kind(models.TextChoices):
        """Ways to send a message."""

        WEBHOOK = "webhook"
        EMAIL = "email"

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notifications"
    )
    kind = models.CharField(max_length=8, choices=Kind.choices)
    address = models.CharField(max_length=320)
    """E-mail address; of a webhook only scheme and host, since the rest may contain a secret."""
    sealed = models.TextField(blank=True, default="")
    """URL and signing secret of a webhook as JSON, encrypted by ``webapp.core.services.sealing``."""
    experiment = models.ForeignKey(
        Experiment, null=True, blank=True, on_delete=models.CASCADE, related_name="notifications"
    )
    """Only runs of this experiment; None: all runs."""
    states: models.JSONField[list[str], list[str]] = models.JSONField(default=list, blank=True)
    """Final states: ``succeeded``, ``failed``, ``stopped``."""
    alerts: models.JSONField[list[str], list[str]] = models.JSONField(default=list, blank=True)
    """Codes of alerts; ``*``: all warnings and errors."""
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.kind} {self.address}"


class Delivery(models.Model):
    """One message: written with the change that it reports, sent by a worker."""

    class State(models.TextChoices):
        """States of a message."""

        PENDING = "pending"
        DELIVERED = "delivered"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    """Identity of the message for its receiver, the same at every attempt."""
    notification = models.ForeignKey(Notification, on_delete=models.CASCADE, related_name="deliveries")
    run = models.ForeignKey(Run, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    """None: a test."""
    key = models.CharField(max_length=64)
    """Event of the run: ``ended STATE EPOCH TIME`` or ``alert ID``."""
    payload: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField()
    state = models.CharField(max_length=9, choices=State.choices, default=State.PENDING)
    attempts = models.IntegerField(default=0)
    next_at = models.DateTimeField(null=True, blank=True)
    """Time of the next attempt while it is pending."""
    status = models.IntegerField(null=True, blank=True)
    """HTTP status of the last response."""
    detail = models.CharField(max_length=500, blank=True, default="")
    """Beginning of the last response, or the reason why there is none."""
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(fields=["notification", "run", "key"], name="delivery_once"),
        ]
        indexes = [
            models.Index(fields=["next_at"], condition=models.Q(state="pending"), name="delivery_due"),
            models.Index(fields=["-created_at"], name="delivery_age"),
        ]

    def __str__(self) -> str:
        return f"{self.payload.get('type')} to {self.notification_id}"
