# ruff: noqa: ARG002  (Django's hooks receive arguments that not every override needs)
"""Admin pages of users, roles and API tokens; ``accounts.services`` applies and audits the changes."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.forms import AdminUserCreationForm, UserChangeForm
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.db.models import QuerySet
from django.http import HttpRequest

from webapp.accounts.middleware import change_password
from webapp.accounts.models import ApiToken
from webapp.accounts.selectors.quotas import run_quotas
from webapp.accounts.services import accounts, sign_ins
from webapp.core.admin_site import RecordAdmin, RoleAdmin, site
from webapp.core.permissions import Role, role_of

ROLE_CHOICES = [(role.value, role.value) for role in Role]


def _actor(request: HttpRequest) -> User | None:
    return request.user if isinstance(request.user, User) else None


class NewPersonForm(AdminUserCreationForm):  # type: ignore[type-arg]
    """Form for a new user: name, password, role."""

    role = forms.ChoiceField(choices=ROLE_CHOICES, initial=Role.VIEWER.value)

    class Meta:
        """Model and fields of the form."""

        model = User
        fields = ("username",)


class PersonForm(UserChangeForm):  # type: ignore[type-arg]
    """Form for an existing user: name, mail, role, new password, activation."""

    role = forms.ChoiceField(choices=ROLE_CHOICES)
    new_password = forms.CharField(
        required=False,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text="Empty: the password stays as it is.",
    )
    runs_at_once = forms.IntegerField(
        required=False,
        min_value=0,
        max_value=accounts.MOST_RUNS_AT_ONCE,
        help_text="Runs that may be active at once; others wait. Empty: the general limit.",
    )

    class Meta:
        """Model and fields of the form."""

        model = User
        fields = ("username", "email", "is_active")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        del self.fields["password"]  # Django's link to a page that this site does not have
        self.fields["runs_at_once"].initial = run_quotas().get(self.instance.pk)
        self.fields["role"].initial = role_of(self.instance) or Role.VIEWER.value

    def clean_new_password(self) -> str:
        """Validate the strength of the new password."""
        password = str(self.cleaned_data["new_password"])
        if password:
            validate_password(password, self.instance)
        return password


@admin.register(User, site=site)
class PersonAdmin(RoleAdmin[User]):
    """Admin page of users and their roles."""

    list_display = ("username", "email", "role", "is_active", "last_login", "date_joined")
    list_filter = ("groups", "is_active")
    search_fields = ("username", "email")
    ordering = ("username",)
    actions = ("unlock", "sign_out")

    @admin.action(description="Unlock sign-in after failed attempts")
    def unlock(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        """Reset failed sign-in attempts."""
        for user in queryset:
            accounts.unlock(user=user, actor=_actor(request))
        messages.success(request, f"{len(queryset)} accounts were unlocked.")

    @admin.action(description="Sign out everywhere")
    def sign_out(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        """End all sessions."""
        ended = sum(sign_ins.end_all(user=user, actor=_actor(request)) for user in queryset)
        messages.success(request, f"{ended} sessions were ended.")

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        """Return the users with their groups, which represent roles."""
        return super().get_queryset(request).prefetch_related("groups")

    def get_form(
        self, request: HttpRequest, obj: User | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        """Return the short form for a new user, the full form for an existing one."""
        kwargs["form"] = PersonForm if obj else NewPersonForm
        kwargs["fields"] = None
        return super().get_form(request, obj, change, **kwargs)

    def get_fields(self, request: HttpRequest, obj: User | None = None) -> Any:
        """Return the fields of the form."""
        if obj is None:
            return ["username", "usable_password", "password1", "password2", "role"]
        return ["username", "email", "role", "new_password", "is_active", "runs_at_once"]

    @admin.display(description="role")
    def role(self, user: User) -> str:
        """Return the user's role."""
        names = {group.name for group in user.groups.all()}
        if user.is_superuser:
            return "admin"
        return next((role.value for role in reversed(Role) if role.value in names), "–")

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        """Save the user, then set role and activation through the service."""
        actor = _actor(request)
        wanted_active = obj.is_active
        if change:
            obj.is_active = bool(User.objects.values_list("is_active", flat=True).get(pk=obj.pk))
        obj.save()
        if form.cleaned_data.get("new_password"):
            change_password(request, user=obj, password=form.cleaned_data["new_password"])
        try:
            accounts.set_role(user=obj, role=Role(form.cleaned_data["role"]), actor=actor)
            if change and wanted_active != obj.is_active:
                accounts.set_active(user=obj, active=wanted_active, actor=actor)
            if change:
                accounts.set_quota(user=obj, runs_at_once=form.cleaned_data["runs_at_once"], actor=actor)
        except accounts.AccountError as error:
            messages.error(request, f"The role was not changed: {error}")

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """Deny deletion: users are deactivated instead, because the audit trail refers to them."""
        return False


@admin.register(ApiToken, site=site)
class ApiTokenAdmin(RecordAdmin[ApiToken]):
    """Admin page of API tokens; deletion revokes a token."""

    list_display = ("name", "user", "scope", "hint", "created_at", "last_used_at", "expires_at")
    list_filter = ("user",)
    search_fields = ("name", "user__username")
    list_select_related = ("user",)
    exclude = ("digest",)

    def has_delete_permission(self, request: HttpRequest, obj: ApiToken | None = None) -> bool:
        """Allow revocation to administrators only."""
        return self.has_view_permission(request, obj)

    def delete_model(self, request: HttpRequest, obj: ApiToken) -> None:
        """Revoke the token, with an audit entry."""
        accounts.revoke_token(token=obj, actor=_actor(request))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[ApiToken]) -> None:
        """Revoke the tokens, each with an audit entry."""
        for token in queryset:
            self.delete_model(request, token)
