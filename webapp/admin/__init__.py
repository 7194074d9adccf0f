"""Admin site: experiments, datasets, users. Records of runs are read-only."""

from __future__ import annotations

from webapp.admin.catalogue import DatasetAdmin, ExperimentAdmin, TaskAdmin
from webapp.admin.people import ApiTokenAdmin, PersonAdmin
from webapp.admin.records import AlertAdmin, AuditEntryAdmin, RunAdmin
from webapp.admin.site import site

__all__ = [
    "AlertAdmin",
    "ApiTokenAdmin",
    "AuditEntryAdmin",
    "DatasetAdmin",
    "ExperimentAdmin",
    "PersonAdmin",
    "RunAdmin",
    "TaskAdmin",
    "site",
]
