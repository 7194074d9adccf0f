"""Who calls: engines by their run's token, people by session or personal token.

People pass through ``Person``, which asks ``webapp.permissions`` like the pages' gate does.
"""

from __future__ import annotations

from django.contrib.auth.models import User
from django.http import HttpRequest
from ninja.errors import HttpError
from ninja.security import HttpBearer
from ninja.utils import check_csrf

from webapp.permissions import ANSWERS, Role, has_role, role_of
from webapp.services import accounts


class RunToken(HttpBearer):
    """Passes the bearer token on; the service compares it with the run's."""

    def authenticate(self, request: HttpRequest, token: str) -> str:  # noqa: ARG002 (ninja's signature)
        """The token as it came."""
        return token


class Person(HttpBearer):
    """A signed-in person (session and CSRF token) or a personal API token, with at least one role.

    Without any of them the answer is 401, with too small a role 403.
    """

    def __init__(self, least: Role) -> None:
        self.least = least
        super().__init__()

    def __call__(self, request: HttpRequest) -> User | None:
        """The caller; None is answered with 401."""
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
        """The owner of a personal API token."""
        return accounts.user_of_token(token)


viewer = Person(Role.VIEWER)
operator = Person(Role.OPERATOR)
answer_reader = Person(ANSWERS)


def caller(request: HttpRequest) -> User:
    """The person whom ``Person`` let in."""
    user = getattr(request, "auth", None)
    assert isinstance(user, User), "the route has no Person auth"
    return user


def role_of_caller(request: HttpRequest) -> Role:
    """Return the role of the person whom ``Person`` let in."""
    role = role_of(caller(request))
    assert role is not None, "Person lets nobody in without a role"
    return role
