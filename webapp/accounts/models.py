"""Personal API tokens and sessions; roles are Django groups (``webapp.core.permissions``)."""

from __future__ import annotations

from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import models


class ApiToken(models.Model):
    """Personal API token; only its hash is stored."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=100)
    digest = models.CharField(max_length=64, unique=True)
    """SHA-256 of the token, hexadecimal."""
    hint = models.CharField(max_length=8)
    """First characters of the token, to distinguish tokens on pages."""
    created_at = models.DateTimeField(auto_now_add=True)
    scope = models.CharField(max_length=16)
    """Highest ``webapp.core.permissions.Role`` granted by the token; its user's role limits it further."""
    last_used_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField()

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.name} ({self.hint}…)"


class RunQuota(models.Model):
    """Number of runs that a user may have at once, instead of the general limit."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True, related_name="run_quota"
    )
    runs_at_once = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.runs_at_once} runs at once of {self.user}"


class SignIn(models.Model):
    """Record of a session in use; it is deleted together with the session."""

    session = models.OneToOneField(Session, on_delete=models.CASCADE, related_name="+")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="sign_ins")
    created_at = models.DateTimeField(auto_now_add=True)
    seen_at = models.DateTimeField()
    address = models.GenericIPAddressField(null=True, blank=True)
    agent = models.CharField(max_length=300, blank=True, default="")
    """The browser's ``User-Agent``."""

    class Meta:
        ordering = ["-seen_at"]

    def __str__(self) -> str:
        return f"session of {self.user} from {self.address}"
