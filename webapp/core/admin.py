"""Read-only admin page of the audit trail."""

from __future__ import annotations

from django.contrib import admin

from webapp.core.admin_site import RecordAdmin, site
from webapp.core.models.audit import AuditEntry


@admin.register(AuditEntry, site=site)
class AuditEntryAdmin(RecordAdmin[AuditEntry]):
    """Admin page of the audit trail, read-only."""

    list_display = ("time", "actor", "action", "run", "target", "changes")
    list_filter = ("action", "actor")
    search_fields = ("target", "action")
    list_select_related = ("actor", "run")
