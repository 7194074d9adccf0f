"""Admin site: experiments, datasets, users. Records of runs are read-only; services change them."""

from __future__ import annotations

from webapp.accounts.admin import ApiTokenAdmin, PersonAdmin
from webapp.core.admin import AuditEntryAdmin
from webapp.core.admin_site import site
from webapp.datasets.admin import DatasetAdmin, TaskAdmin
from webapp.experiments.admin import ExperimentAdmin
from webapp.notifications.admin import DeliveryAdmin, NotificationAdmin
from webapp.rollouts.admin import AnnotationAdmin
from webapp.runs.admin import AlertAdmin, RunAdmin

__all__ = [
    "AlertAdmin",
    "AnnotationAdmin",
    "ApiTokenAdmin",
    "AuditEntryAdmin",
    "DatasetAdmin",
    "DeliveryAdmin",
    "ExperimentAdmin",
    "NotificationAdmin",
    "PersonAdmin",
    "RunAdmin",
    "TaskAdmin",
    "site",
]
