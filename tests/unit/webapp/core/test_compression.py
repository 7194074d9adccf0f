"""Compression of responses: pages, API and archives, and protection of CSRF tokens."""

from __future__ import annotations

import gzip
import re

import pytest
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.test import Client

from tests.builders.web.page_builders import make_yard
from tests.builders.web.web_builders import make_user
from webapp.core.compression import CompressionMiddleware
from webapp.core.permissions import Role

ACCEPTS = {"Accept-Encoding": "gzip"}


@pytest.mark.django_db
def test_pages_and_api_responses_are_compressed_for_clients_that_accept_gzip() -> None:
    yard = make_yard(iterations=1, group_size=2)
    client = Client()
    client.force_login(make_user("ada", Role.OPERATOR))
    trajectory = yard.run.trajectories.earliest("id")
    for address in (f"/runs/{yard.run.pk}/", f"/api/v1/trajectories/{trajectory.pk}"):
        plain = client.get(address)
        packed = client.get(address, headers=ACCEPTS)
        assert plain.headers.get("Content-Encoding") is None
        assert packed.headers["Content-Encoding"] == "gzip"
        assert "Accept-Encoding" in packed.headers["Vary"]
        assert len(packed.content) < len(plain.content) / 2
        assert gzip.decompress(packed.content)


@pytest.mark.django_db
def test_csrf_token_and_length_differ_between_compressed_pages() -> None:
    client = Client()
    client.force_login(make_user("ada", Role.OPERATOR))
    pages = [client.get("/account/", headers=ACCEPTS).content for _ in range(8)]
    tokens = {re.findall(rb'csrfmiddlewaretoken" value="(\w+)"', gzip.decompress(page))[0] for page in pages}
    assert len(tokens) == len(pages)
    assert len({len(page) for page in pages}) > 1
    assert settings.SESSION_COOKIE_SAMESITE == "Lax", "compression relies on it"


def test_archives_are_not_compressed_again() -> None:
    request = HttpRequest()
    request.META["HTTP_ACCEPT_ENCODING"] = "gzip"
    archive = HttpResponse(b"x" * 1000, content_type="application/zip")
    answered = CompressionMiddleware(lambda _: archive).process_response(request, archive)
    assert answered is archive
    assert archive.content == b"x" * 1000
