"""Failures as the API server tells them: a ``Status`` object under an HTTP code.

Messages and reasons are those of ``k8s.io/apimachinery/pkg/api/errors``, because clients show and match them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.fakes.cluster.api.resources import Object, Resource


class ApiError(Exception):
    """Ends a request with a ``Status``.

    Args:
        details: the status's ``details``.
        headers: further HTTP headers.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Object | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details or {}
        self.headers = dict(headers or {})

    def status(self) -> Object:
        """The body."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def _details(resource: Resource, name: str) -> Object:
    return {"name": name, "kind": resource.plural, "group": resource.group}


def not_found(resource: Resource, name: str) -> ApiError:
    """404."""
    return ApiError(
        404, "NotFound", f'{resource.qualified} "{name}" not found', details=_details(resource, name)
    )


def already_exists(resource: Resource, name: str) -> ApiError:
    """409 for a second object of that name."""
    message = f'{resource.qualified} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, details=_details(resource, name))


def conflict(resource: Resource, name: str) -> ApiError:
    """409 for a write on top of an old version."""
    why = "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return ApiError(409, "Conflict", message, details=_details(resource, name))


def bad_request(message: str) -> ApiError:
    """400."""
    return ApiError(400, "BadRequest", message)


def invalid(resource: Resource, name: str, causes: Sequence[tuple[str, str, str]]) -> ApiError:
    """422; each cause is a field, a reason (``FieldValueInvalid``, …) and a message."""
    text = ", ".join(f"{field}: {message}" for field, _, message in causes)
    listed = [{"field": field, "reason": reason, "message": message} for field, reason, message in causes]
    details = {**_details(resource, name), "causes": listed}
    return ApiError(422, "Invalid", f'{resource.kind} "{name}" is invalid: {text}', details=details)


def forbidden(resource: Resource, name: str, why: str) -> ApiError:
    """403 by admission."""
    message = f'{resource.qualified} "{name}" is forbidden: {why}'
    return ApiError(403, "Forbidden", message, details=_details(resource, name))


def gone() -> ApiError:
    """410: the asked version is compacted."""
    return ApiError(410, "Expired", "The resourceVersion for the provided watch is too old.")


def too_many_requests(message: str, retry_after_s: int) -> ApiError:
    """429, to be tried again after some seconds."""
    return ApiError(429, "TooManyRequests", message, headers={"Retry-After": str(retry_after_s)})


def internal(message: str) -> ApiError:
    """500."""
    return ApiError(500, "InternalError", f"Internal error occurred: {message}")
