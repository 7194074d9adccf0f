"""Who may do what: the one list of rules, used by the pages' gate and by the API's.

Roles are Django groups: ``viewer`` reads, ``operator`` also creates and controls runs and sees answers,
``admin`` also manages people. A superuser is an admin; a user in no group may do nothing.
"""

from __future__ import annotations

from enum import StrEnum

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, User


class Role(StrEnum):
    """From least to most; each may do what the ones before it may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


_ORDER = list(Role)


def role_of(user: AbstractBaseUser | AnonymousUser) -> Role | None:
    """The highest role of a user; None for strangers, inactive users and people without a role."""
    if not isinstance(user, User) or not user.is_active:
        return None
    if user.is_superuser:
        return Role.ADMIN
    names = set(user.groups.values_list("name", flat=True))
    return next((role for role in reversed(_ORDER) if role in names), None)


def has_role(user: AbstractBaseUser | AnonymousUser, least: Role) -> bool:
    """Whether the user's role is ``least`` or more."""
    role = role_of(user)
    return role is not None and _ORDER.index(role) >= _ORDER.index(least)


def may_see_answers(user: AbstractBaseUser | AnonymousUser) -> bool:
    """Gold patches, hidden tests and what those print are for operators and admins."""
    return has_role(user, Role.OPERATOR)
