"""Endpoints: OpenAI-compatible addresses that runs may use, with their encrypted keys."""

from __future__ import annotations

from django.db import models


class Endpoint(models.Model):
    """An address with a key; configurations name the endpoint and contain neither."""

    name = models.CharField(max_length=64, unique=True)
    address = models.CharField(max_length=500)
    """Base URL of the API, e.g. ``https://api.example.org/v1``."""
    note = models.CharField(max_length=300, blank=True, default="")
    allowed_models = models.CharField(max_length=500, blank=True, default="")
    """Models that runs may use, separated by commas, ``*`` for any text; empty allows all."""
    attachable = models.BooleanField(default=False)
    """True for a vLLM server that runs may attach to, replacing its weights."""
    sealed_key = models.TextField(blank=True, default="")
    """Key, encrypted by ``webapp.core.services.sealing``; empty if the address needs none."""
    key_hint = models.CharField(max_length=4, blank=True, default="")
    """Last characters of the key; empty if the key is too short to show any."""
    key_set_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def patterns(self) -> tuple[str, ...]:
        """Return the patterns of the allowed models."""
        return tuple(filter(None, (pattern.strip() for pattern in self.allowed_models.split(","))))
