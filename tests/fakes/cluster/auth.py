"""Who asks and whether they may: bearer tokens, and the RBAC objects that the cluster itself holds.

The cluster's first token is the administrator's. Further users and service accounts get tokens from
``Auth.token_for``; what they may do comes from Roles and bindings created through the API, as on a real
cluster.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from aiohttp import web

from tests.fakes.cluster.calls import Call, User
from tests.fakes.cluster.errors import ApiError
from tests.fakes.cluster.resources import (
    CLUSTERROLEBINDINGS,
    CLUSTERROLES,
    NAMESPACES,
    ROLEBINDINGS,
    ROLES,
    Object,
    Resource,
)
from tests.fakes.cluster.store import Store

_MASTERS = "system:masters"
_EVERYBODY = "system:authenticated"
ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))


class Auth:
    """Tokens and permissions."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._users: dict[str, User] = {}
        self.admin_token = self.token_for(User("kubernetes-admin", (_MASTERS, _EVERYBODY)))

    def token_for(self, user: User) -> str:
        """A new token of that user."""
        token = secrets.token_urlsafe(24)
        self._users[token] = user
        return token

    def service_account_token(self, namespace: str, name: str) -> str:
        """A new token of a service account."""
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", _EVERYBODY)
        return self.token_for(User(f"system:serviceaccount:{namespace}:{name}", groups))

    def user(self, request: web.BaseRequest) -> User:
        """Who sent the request. Raises ApiError 401 for a token nobody has."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if not token:
            return ANONYMOUS
        user = self._users.get(token.strip()) if scheme.lower() == "bearer" else None
        if user is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return user

    def check_master(self, user: User) -> None:
        """Raise ApiError 403 unless the caller is an administrator."""
        if _MASTERS not in user.groups:
            raise ApiError(403, "Forbidden", f'User "{user.name}" is no administrator')

    def check(self, call: Call) -> None:
        """Raise ApiError 403 unless the caller may do this."""
        if call.resource.virtual and call.user is not ANONYMOUS:
            return
        # A namespace itself counts as inside of itself, so that its own roles may show it.
        namespace = call.name if call.resource is NAMESPACES else call.namespace
        if not self.allows(call.user, call.verb, call.resource.group, call.plural, namespace, call.name):
            raise denied(call)

    def strike(self, call: Call) -> None:
        """Raise ApiError 403 as if no rule had been loaded yet; a review finds that nothing is allowed."""
        if _MASTERS in call.user.groups:
            return
        if not call.resource.virtual:
            raise denied(call)
        call.user = ANONYMOUS

    def allows(
        self, user: User, verb: str, group: str, resource: str, namespace: str, name: str = ""
    ) -> bool:
        """Whether a role bound to the user, here or everywhere, has a rule for it."""
        if _MASTERS in user.groups:
            return True
        return any(_matches(rule, verb, group, resource, name) for rule in self._rules(user, namespace))

    def _rules(self, user: User, namespace: str) -> Iterator[Object]:
        for binding in self.store.all(CLUSTERROLEBINDINGS):
            if _binds(binding.obj, user, ""):
                yield from self._role(binding.obj["roleRef"], "")
        if namespace:
            for binding in self.store.all(ROLEBINDINGS, namespace):
                if _binds(binding.obj, user, namespace):
                    yield from self._role(binding.obj["roleRef"], namespace)

    def _role(self, reference: Object, namespace: str) -> list[Object]:
        resource: Resource = CLUSTERROLES if reference["kind"] == "ClusterRole" else ROLES
        found = self.store.get(resource, namespace if resource is ROLES else "", reference["name"])
        return (found.obj.get("rules") or []) if found else []


def denied(call: Call) -> ApiError:
    """403 by RBAC, which names an object only where the request's path does."""
    namespace = call.name if call.resource is NAMESPACES else call.namespace
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    named = f'{call.resource.qualified} "{call.name}"' if call.name else call.resource.qualified
    message = (
        f'{named} is forbidden: User "{call.user.name}" cannot {call.verb} resource "{call.plural}" '
        f'in API group "{call.resource.group}" {where}'
    )
    details: Object = {"kind": call.resource.plural, "name": call.name, "group": call.resource.group}
    return ApiError(
        403, "Forbidden", message, details={key: value for key, value in details.items() if value}
    )


def _binds(binding: Object, user: User, namespace: str) -> bool:
    for subject in binding.get("subjects") or []:
        kind, name = subject["kind"], subject["name"]
        if kind == "Group" and name in user.groups:
            return True
        if kind == "User" and name == user.name:
            return True
        account = f"system:serviceaccount:{subject.get('namespace') or namespace}:{name}"
        if kind == "ServiceAccount" and account == user.name:
            return True
    return False


def _matches(rule: Object, verb: str, group: str, resource: str, name: str) -> bool:
    wanted = {resource, "*"}
    if "/" in resource:
        wanted.add("*/" + resource.partition("/")[2])
    names = rule.get("resourceNames") or []
    return (
        bool({verb, "*"} & set(rule.get("verbs") or ()))
        and bool({group, "*"} & set(rule.get("apiGroups") or ()))
        and bool(wanted & set(rule.get("resources") or ()))
        and (not names or name in names)
    )
