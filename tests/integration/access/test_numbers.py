"""Numbers in addresses never break a page, an API call or a live subscription, whatever they are."""

from __future__ import annotations

import itertools
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from pydantic import ValidationError

from tests.builders.page_builders import Yard, make_yard
from tests.builders.web_builders import signed_in
from tests.unit.webapp.test_permissions import arguments, patterns
from webapp.api.app import api
from webapp.core.permissions import Person, Role
from webapp.live.consumer import Subscribe, _subscription
from webapp.live.fragments import PAGES, TARGET_LENGTHS, GoneError, snapshot
from webapp.runs.kinds import TABS

pytestmark = pytest.mark.django_db
WEBAPP = Path(__file__).resolve().parents[3] / "webapp"
NUMBERS = ["-1", "9223372036854775808", "1.5", "²", "%00"]
"""Negative, too large for the database, no whole number, a digit that ``int`` refuses, no text."""
STATUS = {200, 201, 204, 302, 400, 401, 403, 404, 405, 409, 410, 422}


def query_names() -> set[str]:
    """Every name that a page reads from its query string."""
    sources = "\n".join(
        path.read_text()
        for path in sorted(WEBAPP.rglob("*.py"))
        if {"contexts", "views"} & {part.removesuffix(".py") for part in path.relative_to(WEBAPP).parts}
    )
    found = set(re.findall(r"""(?:params|data|GET)\.get\(\s*["'](\w+)["']""", sources))
    assert {"page", "before", "run", "steps", "iteration", "index", "clone", "experiment"} <= found
    return found


def filled(route: str, place: str, values: dict[str, str]) -> str:
    """A route with its places filled in."""
    return re.sub(place, lambda match: values[match[1]], route)


def addresses_with(number: str, yard: Yard) -> list[str]:
    """Every page's address with ``number`` in place of one of its whole numbers."""
    found = []
    for pattern in patterns():
        route = "/" + str(pattern.pattern)
        known = arguments(pattern, yard) if pattern.pattern.converters else {}
        for name in re.findall(r"<int:(\w+)>", route):
            values = {key: str(value) for key, value in known.items()} | {name: number}
            found.append(filled(route, r"<\w+:(\w+)>", values))
    return found


@pytest.fixture
def yard() -> Yard:
    return make_yard(iterations=1, group_size=2)


@pytest.fixture
def client() -> Client:
    found = signed_in(Role.ADMIN)
    found.raise_request_exception = False
    return found


def check(client: Client, address: str) -> None:
    for method in (client.get, client.post):
        status = method(address).status_code
        assert status in STATUS, f"{status}: {address[:200]}"


def test_no_number_in_a_path_breaks_a_page(yard: Yard, client: Client) -> None:
    for number in ("9223372036854775808", "²"):
        found = addresses_with(number, yard)
        assert len(found) > 20
        for address in found:
            if "account/sessions" not in address:  # that one would sign this session out
                check(client, address)


def test_no_number_in_a_query_breaks_a_page(yard: Yard, client: Client) -> None:
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


def test_no_number_breaks_the_api(yard: Yard, client: Client) -> None:
    schema: dict[str, Any] = api.get_openapi_schema()
    known = {
        "run_id": yard.run.pk, "phase": "train", "iteration": 0, "task_key": yard.tasks[0].key,
        "trajectory_id": 1, "name": "quickstart", "key": yard.tasks[0].key, "split": "train",
    }  # fmt: skip
    tried = 0
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            parameters = operation.get("parameters", [])
            wholes = [one["name"] for one in parameters if "integer" in str(one["schema"])]
            for name, number in itertools.product(wholes, NUMBERS):
                in_path = {one["name"] for one in parameters if one["in"] == "path"}
                values = {key: str(known.get(key, "x")) for key in in_path} | {name: number}
                address = filled(path, r"\{(?:int:)?(\w+)\}", values)
                if name not in in_path:
                    address = f"{address}?{name}={number}"
                status = getattr(client, method)(address).status_code
                assert status in STATUS, f"{status}: {method} {address[:200]}"
                tried += 1
    assert tried > 75


def test_no_number_breaks_a_live_subscription(yard: Yard, client: Client) -> None:
    user = client.get("/").wsgi_request.user
    person = Person(user, Role.ADMIN)  # type: ignore[arg-type]
    names = sorted(query_names() - {"tab", "q"})
    for page, number in itertools.product(PAGES, NUMBERS[1:]):
        query = "&".join(f"{name}={number}" for name in names)
        good = ["train", "0", yard.tasks[0].key, "0"][: TARGET_LENGTHS.get(page, 0)]
        targets = [good] + [[*good[:i], number, *good[i + 1 :]] for i in range(len(good))]
        for target in targets:
            for field in ("run", "after", "steps", "point"):
                tell = {"page": page, "run": yard.run.pk, "target": target, "query": query, field: number}
                try:
                    snapshot(_subscription(Subscribe.model_validate(tell), person))
                except (ValidationError, ValueError, GoneError):
                    continue


def test_a_refusal_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    viewer = signed_in(Role.VIEWER)
    with caplog.at_level(logging.INFO):
        assert viewer.get("/runs/new/").status_code == 403
    (record,) = [record for record in caplog.records if record.name.startswith("django")]
    assert record.exc_info is None
    assert "\n" not in record.getMessage()
    assert "/runs/new/" in record.getMessage()
