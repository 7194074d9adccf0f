"""Label selectors, as query parameters carry them: equalities only."""

from __future__ import annotations

from collections.abc import Callable

from tests.fakes.cluster.calls import Call
from tests.fakes.cluster.errors import bad_request
from tests.fakes.cluster.resources import Object

Match = Callable[[Object], bool]


def parse(call: Call) -> Match:
    """A predicate for the call's selector. Raises ApiError 400 for one that is not served here."""
    if "fieldSelector" in call.query:
        raise bad_request("field selectors are not served here")
    wanted: dict[str, str] = {}
    for term in filter(None, call.query.get("labelSelector", "").split(",")):
        key, equals, value = term.partition("=")
        if not equals or key.endswith("!"):
            raise bad_request(f"unable to parse requirement: invalid label selector '{term}'")
        wanted[key] = value
    return lambda obj: wanted.items() <= (obj["metadata"].get("labels") or {}).items()
