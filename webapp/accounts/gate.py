"""Permission gate of pages and WebSockets.

Every view is wrapped by exactly one of ``viewer``, ``token_viewer``, ``operator`` and ``administrator`` (the
admin site requires the role admin itself) and receives the ``Person``; only the pages to sign in and out and
those of ``health`` are public. A test compares all URLs with a table of roles. Anonymous users are
redirected to the sign-in page; a person without the required role gets 403. WebSockets call ``person_of``:
None refuses the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from webapp.accounts.services import accounts
from webapp.core.permissions import ANSWERS, Person, Role, person_of

P = ParamSpec("P")


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
    """Allow access like ``viewer``, also to programs with a personal API token as bearer token."""
    inner = viewer(view)

    @wraps(view)
    def gated(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if not scheme:
            return inner(request, *args, **kwargs)
        api_token = accounts.valid_token(token.strip()) if scheme.lower() == "bearer" else None
        if api_token is None:
            return HttpResponse("no such token\n", status=401, headers={"WWW-Authenticate": "Bearer"})
        request.user = api_token.user
        return inner(request, *args, **kwargs)

    gated.least_role = Role.VIEWER  # type: ignore[attr-defined]
    return gated


def viewer(view: View[P]) -> GatedView[P]:
    """Allow access to every person with a role."""
    return _gate(Role.VIEWER, view)


def operator(view: View[P]) -> GatedView[P]:
    """Allow access to operators and administrators only."""
    return _gate(Role.OPERATOR, view)


def administrator(view: View[P]) -> GatedView[P]:
    """Allow access to administrators only."""
    return _gate(Role.ADMIN, view)


def answer_reader(view: View[P]) -> GatedView[P]:
    """Allow access to persons who may see answers: logs may contain hidden tests."""
    return _gate(ANSWERS, view)
