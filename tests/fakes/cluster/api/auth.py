"""Who asks and whether they may: bearer tokens, and the RBAC objects that the cluster itself holds.

The cluster's first token is the administrator's. Further users and service accounts get tokens from
``Auth.token_for``; what they may do comes from Roles and bindings created through the API, as on a real
cluster.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from aiohttp import web

from tests.fakes.cluster.api.calls import Call
from tests.fakes.cluster.api.errors import ApiError
from tests.fakes.cluster.api.resources import (
    ACCESSREVIEWS,
    CLUSTERROLEBINDINGS,
    CLUSTERROLES,
    NAMESPACES,
    ROLEBINDINGS,
    ROLES,
    Object,
)
from tests.fakes.cluster.api.store import Store

_ADMIN, _NOBODY = "kubernetes-admin", "system:anonymous"


class Auth:
    """Tokens and permissions."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._users: dict[str, str] = {}
        self.admin_token = self.token_for(_ADMIN)

    def token_for(self, user: str) -> str:
        """A new token of that user."""
        token = secrets.token_urlsafe(24)
        self._users[token] = user
        return token

    def service_account_token(self, namespace: str, name: str) -> str:
        """A new token of a service account."""
        return self.token_for(f"system:serviceaccount:{namespace}:{name}")

    def user(self, request: web.BaseRequest) -> str:
        """Who sent the request. Raises ApiError 401 for a token nobody has."""
        user = self._users.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if user is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return user

    def check_admin(self, user: str) -> None:
        """Raise ApiError 403 unless the caller is the administrator."""
        if user != _ADMIN:
            raise ApiError(403, "Forbidden", f'User "{user}" is no administrator')

    def check(self, call: Call) -> None:
        """Raise ApiError 403 unless the caller may do this."""
        if call.resource is not ACCESSREVIEWS and not self.allows(
            call.user, call.verb, call.resource.group, call.plural, _namespace(call)
        ):
            raise denied(call)

    def strike(self, call: Call) -> None:
        """Raise ApiError 403 as if no rule had been loaded yet; a review finds that nothing is allowed."""
        if call.user == _ADMIN:
            return
        if call.resource is not ACCESSREVIEWS:
            raise denied(call)
        call.user = _NOBODY

    def allows(self, user: str, verb: str, group: str, resource: str, namespace: str) -> bool:
        """Whether a role bound to the user, here or everywhere, has a rule for it."""
        return user == _ADMIN or any(
            verb in rule["verbs"] and group in rule["apiGroups"] and resource in rule["resources"]
            for rule in self._rules(user, namespace)
        )

    def _rules(self, user: str, namespace: str) -> Iterator[Object]:
        for binding in self.store.all(CLUSTERROLEBINDINGS):
            if _binds(binding.obj, user):
                yield from self._role(binding.obj["roleRef"], "")
        if namespace:
            for binding in self.store.all(ROLEBINDINGS, namespace):
                if _binds(binding.obj, user):
                    yield from self._role(binding.obj["roleRef"], namespace)

    def _role(self, reference: Object, namespace: str) -> list[Object]:
        found = self.store.get(ROLES if namespace else CLUSTERROLES, namespace, reference["name"])
        return (found.obj.get("rules") or []) if found else []


def _namespace(call: Call) -> str:
    # A namespace itself counts as inside of itself, so that its own roles may show it.
    return call.name if call.resource is NAMESPACES else call.namespace


def denied(call: Call) -> ApiError:
    """403 by RBAC, which names an object only where the request's path does."""
    namespace = _namespace(call)
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    named = f'{call.resource.qualified} "{call.name}"' if call.name else call.resource.qualified
    message = (
        f'{named} is forbidden: User "{call.user}" cannot {call.verb} resource "{call.plural}" '
        f'in API group "{call.resource.group}" {where}'
    )
    details: Object = {"kind": call.resource.plural, "name": call.name, "group": call.resource.group}
    return ApiError(403, "Forbidden", message, details=details)


def _binds(binding: Object, user: str) -> bool:
    return any(
        user == f"system:serviceaccount:{subject.get('namespace')}:{subject['name']}"
        for subject in binding["subjects"]
    )
