"""Without Redis, runs are started later, and no event is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from channels.layers import channel_layers

from tests.builders.web.event_builders import Stream
from tests.builders.web.web_builders import launched, make_run, post
from webapp.core import dispatch
from webapp.models import Event
from webapp.runs.services import runs

pytestmark = pytest.mark.django_db
NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def no_redis(settings: Any) -> Iterator[None]:
    settings.CELERY_BROKER_URL = NOWHERE
    backend = settings.CHANNEL_LAYERS["default"]["BACKEND"]
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": backend, "CONFIG": {"hosts": [NOWHERE]}}}
    dispatch._producer.cache_clear()
    channel_layers.backends.clear()
    yield
    dispatch._producer.cache_clear()
    channel_layers.backends.clear()


def test_runs_start_and_events_are_stored_without_redis(
    no_redis: None, django_capture_on_commit_callbacks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run()
    with django_capture_on_commit_callbacks(execute=True):
        runs.start(run=run)
    assert run.state == "queued"
    assert "the reconciler will" in caplog.text
    other, claim = launched()
    stream = Stream()
    stream.started()
    with django_capture_on_commit_callbacks(execute=True):
        assert post(claim, stream).acked_seq == 1
    assert f"watchers of run.{other.pk} were not told" in caplog.text
    assert Event.objects.filter(run=other).count() == 1
