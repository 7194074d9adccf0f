"""Accounts, roles and API tokens."""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta

from axes.utils import reset
from django.contrib.auth.models import Group, User
from django.contrib.auth.password_validation import validate_password
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from engine.errors import TrainyardError
from webapp.accounts.models import ApiToken, RunQuota
from webapp.accounts.services import sign_ins
from webapp.core.permissions import Role, role_of
from webapp.core.services import audit

TOKEN_PREFIX = "ty_"
TOKEN_DAYS = 90
"""Default lifetime of an API token, days."""
MOST_TOKEN_DAYS = 365
MOST_RUNS_AT_ONCE = 10_000


class AccountError(TrainyardError):
    """The account cannot be created or changed; the message gives the reason."""


def random_password() -> str:
    """Return a new random password of 16 characters."""
    return secrets.token_urlsafe(12)


@transaction.atomic
def create_user(*, username: str, password: str, role: Role, actor: User | None = None) -> User:
    """Create a user with one role.

    Raises:
        AccountError: the name is taken or empty.
        django.core.exceptions.ValidationError: the password is too weak.
    """
    if not username or User.objects.filter(username=username).exists():
        raise AccountError(f"the user name '{username}' is empty or taken")
    validate_password(password, User(username=username))
    user = User.objects.create_user(username=username, password=password)
    _assign(user, role)
    audit.record(
        actor=actor, action="account.create", target=f"user {username}", changes={"role": role.value}
    )
    return user


@transaction.atomic
def set_role(*, user: User, role: Role, actor: User | None = None) -> None:
    """Change a user's role. Raises AccountError if no administrator would be left."""
    _keep_an_admin(user, role)
    _assign(user, role)
    audit.record(
        actor=actor, action="account.role", target=f"user {user.get_username()}", changes={"role": role.value}
    )


@transaction.atomic
def set_active(*, user: User, active: bool, actor: User | None = None) -> None:
    """Activate or deactivate an account and its API tokens. Raises AccountError for the last admin."""
    if not active:
        _keep_an_admin(user, Role.VIEWER)
    user.is_active = active
    user.save(update_fields=["is_active"])
    if not active:
        sign_ins.end_all(user=user, actor=actor)
    audit.record(
        actor=actor, action="account.active", target=f"user {user.get_username()}", changes={"active": active}
    )


def ensure_admin(*, username: str = "admin") -> str | None:
    """Create the first administrator and return the random password; None if one exists already."""
    if _admins().exists():
        return None
    password = random_password()
    user = create_user(username=username, password=password, role=Role.ADMIN)
    user.is_staff = user.is_superuser = True
    user.save(update_fields=["is_staff", "is_superuser"])
    return password


@transaction.atomic
def set_password(*, user: User, password: str, actor: User | None = None, keep_session: str = "") -> None:
    """Change a user's password; revoke the user's API tokens and end all sessions but ``keep_session``.

    Raises django.core.exceptions.ValidationError if the password is too weak.
    """
    validate_password(password, user)
    user.set_password(password)
    user.save(update_fields=["password"])
    sign_ins.end_all(user=user, actor=actor, keep=keep_session)
    action = "account.password" if actor == user else "account.password_reset"
    audit.record(actor=actor, action=action, target=f"user {user.get_username()}")


class TokensEndWithPassword:
    """Password validator that accepts every password and revokes API tokens when a password changes."""

    def validate(self, password: str, user: User | None = None) -> None:
        """Accept the password."""

    def get_help_text(self) -> str:
        """Return the consequence of a change."""
        return "A new password revokes the API tokens and ends the sessions of its user."

    def password_changed(self, password: str, user: User) -> None:  # noqa: ARG002 (Django's signature)
        """Revoke the user's API tokens, regardless of the page or command that changed the password."""
        revoked, _ = ApiToken.objects.filter(user=user).delete()
        if revoked:
            audit.record(
                actor=None,
                action="token.revoke_all",
                target=f"user {user.get_username()}",
                changes={"tokens": revoked, "reason": "password changed"},
            )


@transaction.atomic
def create_token(
    *, user: User, name: str, scope: Role = Role.VIEWER, days: int = TOKEN_DAYS, actor: User | None = None
) -> str:
    """Create an API token and return its text, which is stored nowhere.

    Raises:
        AccountError: the name is empty, the scope is above the user's role, or the lifetime is not allowed.
    """
    name, role = " ".join(name.split()), role_of(user)
    if not 0 < len(name) <= 100:
        raise AccountError(f"a token needs a name of at most 100 characters, not {len(name)}")
    if role is None or not role.includes(scope):
        raise AccountError(f"{user.get_username()} has the role {role}: the scope {scope} is above it")
    if not 1 <= days <= MOST_TOKEN_DAYS:
        raise AccountError(f"a token is valid for 1 to {MOST_TOKEN_DAYS} days, not {days}")
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    ApiToken.objects.create(
        user=user,
        name=name,
        scope=scope,
        digest=_digest(token),
        hint=token[:8],
        expires_at=timezone.now() + timedelta(days=days),
    )
    audit.record(
        actor=actor,
        action="token.create",
        target=f"token {name} of {user.get_username()}",
        changes={"scope": scope.value, "days": days},
    )
    return token


@transaction.atomic
def unlock(*, user: User, actor: User | None = None) -> None:
    """Reset a user's failed sign-in attempts from every address."""
    reset(username=user.get_username())
    audit.record(actor=actor, action="account.unlock", target=f"user {user.get_username()}")


@transaction.atomic
def revoke_token(*, token: ApiToken, actor: User | None = None) -> None:
    """Delete an API token."""
    audit.record(actor=actor, action="token.revoke", target=f"token {token.name} of {token.user}")
    token.delete()


def valid_token(token: str) -> ApiToken | None:
    """Return the API token with this text, unless it has expired or its user is inactive."""
    now = timezone.now()
    valid = ApiToken.objects.filter(expires_at__gt=now, user__is_active=True).select_related("user")
    api_token = valid.filter(digest=_digest(token)).first()
    if api_token is None:
        return None
    # At most one write a minute: programs may send many requests a second.
    if api_token.last_used_at is None or (now - api_token.last_used_at).total_seconds() > 60:
        ApiToken.objects.filter(pk=api_token.pk).update(last_used_at=now)
    return api_token


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _admins() -> QuerySet[User]:
    return User.objects.filter(
        Q(is_superuser=True) | Q(groups__name=Role.ADMIN.value), is_active=True
    ).distinct()


def _keep_an_admin(user: User, role: Role) -> None:
    admins = set(_admins().values_list("pk", flat=True))
    if role is not Role.ADMIN and admins == {user.pk}:
        raise AccountError("this is the last admin: make another one first")


@transaction.atomic
def set_quota(*, user: User, runs_at_once: int | None, actor: User | None = None) -> None:
    """Set how many runs a user may have at once.

    Args:
        user: the user.
        runs_at_once: the number; None: the general limit.
        actor: the requesting user.

    Raises:
        AccountError: the number is negative or above ``MOST_RUNS_AT_ONCE``.
    """
    if runs_at_once is not None and not 0 <= runs_at_once <= MOST_RUNS_AT_ONCE:
        raise AccountError(f"0 to {MOST_RUNS_AT_ONCE:,} runs at once are allowed, not {runs_at_once:,}")
    old = RunQuota.objects.filter(user=user).values_list("runs_at_once", flat=True).first()
    if old == runs_at_once:
        return
    if runs_at_once is None:
        RunQuota.objects.filter(user=user).delete()
    else:
        RunQuota.objects.update_or_create(user=user, defaults={"runs_at_once": runs_at_once})
    changes = {"runs_at_once": {"old": old, "new": runs_at_once}}
    audit.record(actor=actor, action="account.quota", target=f"user {user.get_username()}", changes=changes)


def _assign(user: User, role: Role) -> None:
    group, _ = Group.objects.get_or_create(name=role.value)
    user.groups.set([group])
    if role is not Role.ADMIN and user.is_superuser:
        user.is_superuser = user.is_staff = False
        user.save(update_fields=["is_superuser", "is_staff"])
