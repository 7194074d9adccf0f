# ruff: noqa: ARG002  (Django's hooks receive arguments that not every override needs)
"""Admin site, open to the role admin by the same rules as the pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from django.contrib import admin
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from webapp.core.permissions import Role, has_role

ModelRow = TypeVar("ModelRow", bound=Model)
if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin
else:

    class _ModelAdmin(admin.ModelAdmin):
        """Base class that accepts a type parameter at runtime, like its stub."""

        def __class_getitem__(cls, _: object) -> type:
            return cls


class TrainyardAdminSite(admin.AdminSite):
    """Admin site that requires the role admin instead of Django's staff flag."""

    site_header = "Trainyard"
    site_title = "Trainyard admin"
    index_title = "Manage"
    site_url = "/"

    def has_permission(self, request: HttpRequest) -> bool:
        """Allow access to administrators only."""
        return has_role(request.user, Role.ADMIN)

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Redirect to the sign-in page, which counts attempts; deny signed-in users without the role."""
        if request.user.is_authenticated:
            raise PermissionDenied(f"This needs the role {Role.ADMIN}.")
        return redirect_to_login(request.GET.get("next", reverse("admin:index")))


class RoleAdmin(_ModelAdmin[ModelRow]):
    """Admin page of a model that administrators may change."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Show the model to administrators only."""
        return has_role(request.user, Role.ADMIN)

    def has_view_permission(self, request: HttpRequest, obj: ModelRow | None = None) -> bool:
        """Allow reading to administrators only."""
        return has_role(request.user, Role.ADMIN)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Allow additions to administrators only."""
        return has_role(request.user, Role.ADMIN)

    def has_change_permission(self, request: HttpRequest, obj: ModelRow | None = None) -> bool:
        """Allow changes to administrators only."""
        return has_role(request.user, Role.ADMIN)

    def has_delete_permission(self, request: HttpRequest, obj: ModelRow | None = None) -> bool:
        """Allow deletion to administrators only."""
        return has_role(request.user, Role.ADMIN)


class RecordAdmin(RoleAdmin[ModelRow]):
    """Read-only admin page of a model that is written by services."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Deny: rows are written by services."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: ModelRow | None = None) -> bool:
        """Deny: rows are written by services."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: ModelRow | None = None) -> bool:
        """Deny: records are kept."""
        return False


site = TrainyardAdminSite(name="admin")
