"""Authentication of callers: engines by their run's token, people by session or personal token.

``Person`` authenticates people and applies ``webapp.core.permissions`` like the gate of the pages.
"""

from __future__ import annotations

from typing import cast

from django.contrib.auth.models import User
from django.http import HttpRequest
from ninja.errors import HttpError
from ninja.security import HttpBearer
from ninja.utils import check_csrf

from webapp.accounts.services import accounts
from webapp.core.permissions import ANSWERS, Role, role_of


class RunToken(HttpBearer):
    """Bearer token of a run, passed on to the service, which verifies it."""

    def authenticate(self, request: HttpRequest, token: str) -> str:  # noqa: ARG002 (ninja's signature)
        """Return the token unchanged."""
        return token


class Person(HttpBearer):
    """Authentication by session (with CSRF token) or personal API token; requires a role.

    A token's scope limits the role. The answer is 401 without authentication and 403 without the required
    role.
    """

    def __init__(self, least: Role) -> None:
        self.least = least
        super().__init__()

    def __call__(self, request: HttpRequest) -> User | None:
        """Return the caller; None is answered with 401."""
        if request.headers.get("Authorization"):
            return cast("User | None", super().__call__(request))
        if not isinstance(request.user, User):
            return None
        if check_csrf(request) is not None:
            raise HttpError(403, "CSRF token missing or wrong: send it as X-CSRFToken")
        return self._admitted(request, request.user, Role.ADMIN)

    def authenticate(self, request: HttpRequest, token: str) -> User | None:
        """Return the owner of a personal API token."""
        api_token = accounts.valid_token(token)
        return self._admitted(request, api_token.user, Role(api_token.scope)) if api_token else None

    def _admitted(self, request: HttpRequest, user: User, scope: Role) -> User:
        """Store the caller's role on the request. Raises a 403 error if the role is not sufficient."""
        role = role_of(user)
        if role is None or not role.includes(self.least):
            raise HttpError(403, f"this needs the role {self.least}")
        if not scope.includes(self.least):
            raise HttpError(403, f"this needs a token with the scope {self.least}; this one has {scope}")
        request.role = role.within(scope)  # type: ignore[attr-defined]
        return user


viewer = Person(Role.VIEWER)
operator = Person(Role.OPERATOR)
admin = Person(Role.ADMIN)
answer_reader = Person(ANSWERS)


def caller(request: HttpRequest) -> User:
    """Return the caller authenticated by ``Person``."""
    user = getattr(request, "auth", None)
    assert isinstance(user, User), "the route has no Person auth"
    return user


def role_of_caller(request: HttpRequest) -> Role:
    """Return the role of the caller authenticated by ``Person``, within the scope of the token."""
    role = getattr(request, "role", None)
    assert isinstance(role, Role), "the route has no Person auth"
    return role
