"""The one permission gate of pages and WebSockets.

Every view is wrapped by exactly one of ``viewer``, ``token_viewer`` and ``operator`` (the admin site asks for
the role admin itself) and is handed the ``Person`` that passed; only the login and logout pages and what
``health`` says are public.
A test walks all addresses and fails where one is not gated. Nobody → the login page; somebody without the
role → 403.
WebSockets ask ``person_of``: None refuses the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, User
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from webapp.permissions import ANSWERS, Role, role_of
from webapp.services import accounts

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who is signed in and has a role."""

    user: User
    role: Role

    @property
    def can_operate(self) -> bool:
        """May create and control runs, and see answers."""
        return self.role.includes(Role.OPERATOR)

    @property
    def can_manage(self) -> bool:
        """May manage people, experiments and datasets."""
        return self.role is Role.ADMIN


def person_of(user: AbstractBaseUser | AnonymousUser | None) -> Person | None:
    """The person behind a user; None for strangers and people without a role."""
    role = role_of(user) if user is not None else None
    return Person(user, role) if role is not None and isinstance(user, User) else None


View = Callable[Concatenate[HttpRequest, Person, P], HttpResponseBase]
GatedView = Callable[Concatenate[HttpRequest, P], HttpResponseBase]


def _gate(least: Role, view: View[P]) -> GatedView[P]:
    @wraps(view)
    def gated(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path())
        person = person_of(request.user)
        if person is None or not person.role.includes(least):
            raise PermissionDenied(f"This needs the role {least}.")
        return view(request, person, *args, **kwargs)

    gated.least_role = least  # type: ignore[attr-defined]
    return gated


def token_viewer(view: View[P]) -> GatedView[P]:
    """``viewer`` for programs as well: a personal API token as bearer is as good as a session."""
    inner = viewer(view)

    @wraps(view)
    def gated(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if not scheme:
            return inner(request, *args, **kwargs)
        user = accounts.user_of_token(token.strip()) if scheme.lower() == "bearer" else None
        if user is None:
            return HttpResponse("no such token\n", status=401, headers={"WWW-Authenticate": "Bearer"})
        request.user = user
        return inner(request, *args, **kwargs)

    gated.least_role = Role.VIEWER  # type: ignore[attr-defined]
    return gated


def viewer(view: View[P]) -> GatedView[P]:
    """Anyone with a role may read."""
    return _gate(Role.VIEWER, view)


def operator(view: View[P]) -> GatedView[P]:
    """Operators and admins: creating and controlling runs, seeing answers."""
    return _gate(Role.OPERATOR, view)


def answer_reader(view: View[P]) -> GatedView[P]:
    """Allow reading to those who see answers: hidden tests print themselves into logs."""
    return _gate(ANSWERS, view)
