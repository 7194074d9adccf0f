"""Invalid numbers in addresses never break a page, an API call or a live subscription."""

from __future__ import annotations

import itertools
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from pydantic import ValidationError

from tests.builders.web.page_builders import Yard, make_yard
from tests.builders.web.web_builders import signed_in
from tests.unit.webapp.test_permissions import arguments, patterns
from webapp.api.app import api
from webapp.core.permissions import Person, Role
from webapp.live.consumer import Subscribe, _subscription
from webapp.live.fragments import PAGES, TARGET_LENGTHS, GoneError, snapshot
from webapp.rollouts.selectors.filters import TrajectoryFilters
from webapp.runs.kinds import TABS

pytestmark = pytest.mark.django_db
WEBAPP = Path(__file__).resolve().parents[3] / "webapp"
NUMBERS = ["-1", "9223372036854775808", "1.5", "²", "%00"]
"""Negative, too large for the database, fractional, a digit that ``int`` rejects, a NUL byte."""
VALID_NUMBERS: dict[str, list[str]] = {
    "query": NUMBERS, "run": [], "after": NUMBERS[1:2], "steps": NUMBERS[1:2], "point": NUMBERS[1:3],
}  # fmt: skip
"""Numbers that a field of a live subscription accepts; pages ignore an invalid one in their query."""
STATUS = {200, 201, 204, 302, 400, 401, 403, 404, 405, 409, 410, 422}


def query_names() -> set[str]:
    """Return every name that a page reads from its query string."""
    sources = "\n".join(
        path.read_text()
        for path in sorted(WEBAPP.rglob("*.py"))
        if {"contexts", "views"} & {part.removesuffix(".py") for part in path.relative_to(WEBAPP).parts}
    )
    names = set(re.findall(r"""(?:params|data|GET)\.get\(\s*["'](\w+)["']""", sources))
    assert {"page", "before", "run", "iteration", "index", "clone", "experiment"} <= names
    return names | set(TrajectoryFilters.model_fields)


def filled(route: str, place: str, values: dict[str, str]) -> str:
    """Return a route with its placeholders filled in."""
    return re.sub(place, lambda match: values[match[1]], route)


def addresses_with(number: str, yard: Yard) -> list[str]:
    """Return every page address with ``number`` in place of one of its integers."""
    addresses = []
    for pattern in patterns():
        route = "/" + str(pattern.pattern)
        known = arguments(pattern, yard) if pattern.pattern.converters else {}
        for name in re.findall(r"<int:(\w+)>", route):
            values = {key: str(value) for key, value in known.items()} | {name: number}
            addresses.append(filled(route, r"<\w+:(\w+)>", values))
    return addresses


@pytest.fixture
def yard() -> Yard:
    return make_yard(iterations=1, group_size=2)


@pytest.fixture
def client() -> Client:
    administrator = signed_in(Role.ADMIN)
    administrator.raise_request_exception = False
    return administrator


def check(client: Client, address: str) -> None:
    for method in (client.get, client.post):
        status = method(address).status_code
        assert status in STATUS, f"{status}: {address[:200]}"


def test_invalid_numbers_in_paths_break_no_page(yard: Yard, client: Client) -> None:
    for number in ("9223372036854775808", "²"):
        addresses = addresses_with(number, yard)
        assert len(addresses) > 20
        for address in addresses:
            if "account/sessions" not in address:  # ending this session would sign the client out
                check(client, address)


def test_invalid_numbers_in_queries_break_no_page(yard: Yard, client: Client) -> None:
    names = sorted(query_names() - {"clone", "tab", "q", "run"})
    key = yard.tasks[0].key
    run = f"/runs/{yard.run.pk}/"
    addresses = [
        "/", "/runs/", "/trajectories/", "/sandboxes/", "/datasets/quickstart/",
        "/datasets/quickstart/health/", "/datasets/quickstart/left-out/", "/runs/new/",
        "/experiments/", f"{run}train/0/",
        f"{run}train/0/{key}/",
        f"{run}train/0/{key}/0/", f"{run}predictions.jsonl", f"{run}harness-report.json",
        *(f"{run}?tab={tab}" for tab in TABS),
    ]  # fmt: skip
    for number in NUMBERS[1:3]:
        query = "&".join(f"{name}={number}" for name in names)
        for address in addresses:
            full = f"{address}{'&' if '?' in address else '?'}{query}"
            assert client.get(full).status_code in STATUS, full
        for name in ("clone", "run"):
            for page in ("runs/new", "sandboxes", "trajectories"):
                assert client.get(f"/{page}/?{name}={number}").status_code in STATUS


def test_invalid_numbers_break_no_api_call(yard: Yard, client: Client) -> None:
    schema: dict[str, Any] = api.get_openapi_schema()
    known = {
        "run_id": yard.run.pk, "phase": "train", "iteration": 0, "task_key": yard.tasks[0].key,
        "trajectory_id": 1, "name": "quickstart", "key": yard.tasks[0].key, "split": "train",
    }  # fmt: skip
    tried = 0
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            parameters = operation.get("parameters", [])
            integers = [field["name"] for field in parameters if "integer" in str(field["schema"])]
            for name, number in itertools.product(integers, NUMBERS):
                in_path = {field["name"] for field in parameters if field["in"] == "path"}
                values = {key: str(known.get(key, "x")) for key in in_path} | {name: number}
                address = filled(path, r"\{(?:int:)?(\w+)\}", values)
                if name not in in_path:
                    address = f"{address}?{name}={number}"
                status = getattr(client, method)(address).status_code
                assert status in STATUS, f"{status}: {method} {address[:200]}"
                tried += 1
    assert tried > 75


def test_invalid_numbers_break_no_live_subscription(yard: Yard, client: Client) -> None:
    user = client.get("/").wsgi_request.user
    person = Person(user, Role.ADMIN)  # type: ignore[arg-type]
    names = sorted(query_names() - {"tab", "q"})
    for page, number in itertools.product(PAGES, NUMBERS[1:]):
        query = "&".join(f"{name}={number}" for name in names)
        rollout = ["train", "0", yard.tasks[0].key, "0"]
        named = {"health": ["quickstart"], "experiment": [str(yard.experiment.pk)]}
        valid = named.get(page, rollout[: TARGET_LENGTHS.get(page, 0)])
        targets = [valid] + [[*valid[:i], number, *valid[i + 1 :]] for i in range(len(valid))]
        for target in targets:
            for field in ("query", "run", "after", "steps", "point"):
                message = {"page": page, "run": yard.run.pk, "target": target, "query": query}
                message |= {field: number} if field != "query" else {}
                try:
                    snapshot(_subscription(Subscribe.model_validate(message), person))
                    is_rendered = True
                except (ValidationError, ValueError, GoneError):
                    is_rendered = False
                is_valid = target == valid and number in VALID_NUMBERS[field]
                assert is_rendered == is_valid, (page, number, target, field)


def test_refused_request_is_logged_as_one_line(caplog: pytest.LogCaptureFixture) -> None:
    viewer = signed_in(Role.VIEWER)
    with caplog.at_level(logging.INFO):
        assert viewer.get("/runs/new/").status_code == 403
    (record,) = [record for record in caplog.records if record.name.startswith("django")]
    assert record.exc_info is None
    assert "\n" not in record.getMessage()
    assert "/runs/new/" in record.getMessage()
