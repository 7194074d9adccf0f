"""Merge patches (RFC 7386), the only kind of PATCH that the cluster takes."""

from __future__ import annotations

import json
from typing import Any

from tests.fakes.cluster.errors import ApiError, bad_request
from tests.fakes.cluster.resources import Object


def apply(kind: str, body: bytes, obj: Object) -> Object:
    """``obj`` (which may be consumed) with the patch applied.

    Args:
        kind: the request's content type.

    Raises:
        ApiError: 400 for a patch that cannot be read, 415 for another kind.
    """
    if kind.partition(";")[0].strip() != "application/merge-patch+json":
        message = f"the body of the request was in an unknown format - {kind}"
        raise ApiError(415, "UnsupportedMediaType", message)
    try:
        merged: Object = _merge(obj, json.loads(body))
    except ValueError as error:
        raise bad_request(f"error decoding patch: {error}") from None
    return merged


def _merge(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged
