# ruff: noqa: ARG002  (Django's hooks are handed arguments that not every answer needs)
"""The admin site itself: open to the role admin, by the same rules as the pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from django.contrib import admin
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from webapp.permissions import Role, has_role

ModelRow = TypeVar("ModelRow", bound=Model)
if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin
else:

    class _ModelAdmin(admin.ModelAdmin):
        """Subscriptable like its stub."""

        def __class_getitem__(cls, _: object) -> type:
            return cls


class TrainyardAdminSite(admin.AdminSite):
    """Asks for the role instead of Django's staff flag."""

    site_header = "Trainyard"
    site_title = "Trainyard admin"
    index_title = "Manage"
    site_url = "/"

    def has_permission(self, request: HttpRequest) -> bool:
        """Admins only."""
        return has_role(request.user, Role.ADMIN)

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Lead to the one login page, which counts attempts; who is signed in already lacks the role."""
        if request.user.is_authenticated:
            raise PermissionDenied(f"This needs the role {Role.ADMIN}.")
        return redirect_to_login(request.GET.get("next", reverse("admin:index")))


class RoleAdmin(_ModelAdmin[ModelRow]):
    """A model that admins may change."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Shown to admins."""
        return has_role(request.user, Role.ADMIN)

    def has_view_permission(self, request: HttpRequest, obj: ModelRow | None = None) -> bool:
        """Admins read."""
        return has_role(request.user, Role.ADMIN)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Admins add."""
        return has_role(request.user, Role.ADMIN)

    def has_change_permission(self, request: HttpRequest, obj: ModelRow | None = None) -> bool:
        """Admins change."""
        return has_role(request.user, Role.ADMIN)

    def has_delete_permission(self, request: HttpRequest, obj: ModelRow | None = None) -> bool:
        """Admins delete."""
        return has_role(request.user, Role.ADMIN)


class RecordAdmin(RoleAdmin[ModelRow]):
    """A model that services write and people only read."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody: services write."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: ModelRow | None = None) -> bool:
        """Nobody: services write."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: ModelRow | None = None) -> bool:
        """Nobody: records stay."""
        return False


site = TrainyardAdminSite(name="admin")
