"""Authentication of callers: engines by their run's token, people by session or personal token.

``Person`` authenticates people and applies ``webapp.permissions`` like the gate of the pages.
"""

from __future__ import annotations

from django.contrib.auth.models import User
from django.http import HttpRequest
from ninja.errors import HttpError
from ninja.security import HttpBearer
from ninja.utils import check_csrf

from webapp.permissions import ANSWERS, Role, has_role, role_of
from webapp.services.access import accounts


class RunToken(HttpBearer):
    """Bearer token of a run, passed on to the service, which verifies it."""

    def authenticate(self, request: HttpRequest, token: str) -> str:  # noqa: ARG002 (ninja's signature)
        """Return the token unchanged."""
        return token


class Person(HttpBearer):
    """Authentication by session (with CSRF token) or personal API token; requires a role.

    The answer is 401 without authentication and 403 without the required role.
    """

    def __init__(self, least: Role) -> None:
        self.least = least
        super().__init__()

    def __call__(self, request: HttpRequest) -> User | None:
        """Return the caller; None is answered with 401."""
        if request.headers.get("Authorization"):
            user: User | None = super().__call__(request)
        else:
            user = request.user if isinstance(request.user, User) else None
            if user is not None and check_csrf(request) is not None:
                raise HttpError(403, "CSRF token missing or wrong: send it as X-CSRFToken")
        if user is not None and not has_role(user, self.least):
            raise HttpError(403, f"this needs the role {self.least.value}")
        return user

    def authenticate(self, request: HttpRequest, token: str) -> User | None:  # noqa: ARG002
        """Return the owner of a personal API token."""
        return accounts.user_of_token(token)


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
    """Return the role of the caller authenticated by ``Person``."""
    role = role_of(caller(request))
    assert role is not None, "Person lets nobody in without a role"
    return role
