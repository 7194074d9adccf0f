"""Django application of Trainyard."""

from __future__ import annotations

import os
from pathlib import Path

from django.apps import AppConfig

from engine.redaction import add_secrets, machine_secrets, passwords_in


class WebappConfig(AppConfig):
    """Application with the label ``webapp``."""

    name = "webapp"
    label = "webapp"
    verbose_name = "Trainyard"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the installation's secrets with this process's redactor."""
        from django.conf import settings

        add_secrets((settings.SECRET_KEY, *machine_secrets(os.environ, home=Path(settings.TRAINYARD_HOME))))
        add_secrets(
            secret for url in (settings.DATABASE_URL, settings.REDIS_URL) for secret in passwords_in(url)
        )
