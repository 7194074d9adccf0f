"""The one Django application of Trainyard."""

from __future__ import annotations

from django.apps import AppConfig


class WebappConfig(AppConfig):
    """Registers the app under the label ``webapp``."""

    name = "webapp"
    label = "webapp"
    verbose_name = "Trainyard"
    default_auto_field = "django.db.models.BigAutoField"
