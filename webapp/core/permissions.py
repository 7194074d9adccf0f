"""Permission rules, used by the pages and the API.

Roles are Django groups: ``viewer`` reads, ``operator`` also sees answers, creates runs and changes own runs,
``admin`` also changes all runs and manages people. A superuser is an admin; a user without a group has no
permissions. The scope of an API token limits the role of its owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, User
from django.core.exceptions import PermissionDenied

if TYPE_CHECKING:
    from webapp.runs.models.runs import Run


class Role(StrEnum):
    """Roles in ascending order; each includes the permissions of the ones before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, least: Role) -> bool:
        """Return whether this role has all permissions of ``least``."""
        return _ORDER.index(self) >= _ORDER.index(least)

    def within(self, scope: Role) -> Role:
        """Return this role limited to ``scope``."""
        return min(self, scope, key=_ORDER.index)

    @property
    def sees_answers(self) -> bool:
        """Return whether this role may see gold patches, hidden tests and the tests' output."""
        return self.includes(ANSWERS)


_ORDER = list(Role)
ANSWERS = Role.OPERATOR
"""Lowest role that may see answers."""


def role_of(user: AbstractBaseUser | AnonymousUser) -> Role | None:
    """Return the highest role of a user; None for anonymous users, inactive users and users without one."""
    if not isinstance(user, User) or not user.is_active:
        return None
    if user.is_superuser:
        return Role.ADMIN
    names = {group.name for group in user.groups.all()}
    return next((role for role in reversed(_ORDER) if role in names), None)


def has_role(user: AbstractBaseUser | AnonymousUser, least: Role) -> bool:
    """Return whether the user's role is ``least`` or higher."""
    role = role_of(user)
    return role is not None and role.includes(least)


@dataclass(frozen=True, slots=True)
class Person:
    """A signed-in user with a role."""

    user: User
    role: Role

    @property
    def can_operate(self) -> bool:
        """Return whether the person may create and control runs, and see answers."""
        return self.role.includes(Role.OPERATOR)

    @property
    def can_manage(self) -> bool:
        """Return whether the person may manage users, endpoints and datasets."""
        return self.role is Role.ADMIN


def person_of(user: AbstractBaseUser | AnonymousUser | None) -> Person | None:
    """Return the person of a user; None for anonymous users and users without a role."""
    role = role_of(user) if user is not None else None
    return Person(user, role) if role is not None and isinstance(user, User) else None


def shows_rollouts(run: Run, role: Role) -> bool:
    """Return whether a role may read a run's rollouts; those of the oracle contain the gold patches."""
    return role.sees_answers or not run.plays_answers


def check_rollouts(run: Run, role: Role) -> None:
    """Raise PermissionDenied if a role may not read a run's rollouts."""
    if not shows_rollouts(run, role):
        raise PermissionDenied(f"The oracle's rollouts are the gold patches: this needs the role {ANSWERS}.")


def may_change(run: Run, role: Role, user_id: int | None) -> bool:
    """Return whether a user may change a run and what belongs to it; operators change only their own."""
    owns = run.created_by_id is not None and run.created_by_id == user_id
    return role is Role.ADMIN or (owns and role.includes(Role.OPERATOR))


def change_refusal(run: Run, role: Role, user_id: int | None) -> str:
    """Return the reason why a user may not change a run; empty if the change is allowed."""
    if may_change(run, role, user_id):
        return ""
    if not role.includes(Role.OPERATOR):
        return f"This needs the role {Role.OPERATOR}."
    if run.created_by is None:
        return f"Run {run.pk} was created by a command: only administrators may change it."
    owner = run.created_by.get_username()
    return f"Run {run.pk} belongs to {owner}: only {owner} and administrators may change it."


def may_remove(author_id: int | None, role: Role, user_id: int | None) -> bool:
    """Return whether the user is an operator who wrote something, or an administrator."""
    wrote = author_id is not None and author_id == user_id
    return role is Role.ADMIN or (wrote and role.includes(Role.OPERATOR))


def check_author(author_id: int | None, role: Role, user_id: int) -> None:
    """Raise PermissionDenied unless the user ``may_remove`` what the author wrote."""
    if not may_remove(author_id, role, user_id):
        raise PermissionDenied("Only its author and administrators may change or remove this.")


def check_change(run: Run, role: Role, user_id: int | None) -> None:
    """Raise PermissionDenied if a user may not change a run and what belongs to it."""
    if refusal := change_refusal(run, role, user_id):
        raise PermissionDenied(refusal)
