"""Display texts of enumerations, codes and events on pages."""

from __future__ import annotations

from enum import StrEnum

import pytest

from engine.events.health import RowStatus
from engine.events.types import EVENT_ADAPTER
from engine.types import (
    FindingKind,
    TerminationReason,
    TestKind,
    TestOutcome,
    Verdict,
)
from tests.builders.web.kind_builders import KINDS, make_kind
from tests.builders.web.page_builders import make_yard
from webapp.core.contexts.event_words import event_words
from webapp.core.contexts.words import in_words
from webapp.models import Event


@pytest.mark.parametrize(
    "values",
    [TerminationReason, Verdict, FindingKind, TestKind, TestOutcome, RowStatus],
    ids=lambda values: values.__name__,
)
def test_enumeration_values_are_displayed_as_words(values: type[StrEnum]) -> None:
    assert not [value for value in values if "_" in in_words(value)]


@pytest.mark.django_db
def test_every_event_is_displayed_as_a_sentence() -> None:
    make_yard(iterations=1, group_size=2)
    for kind in KINDS:
        make_kind(kind)
    seen = set()
    for event in Event.objects.all():
        text, _ = event_words(event.run_id, event)
        seen.add(event.type)
        for raw in ("{", "None", "gold_fails", "max_steps", "env_error", "run_"):
            assert raw not in text, (event.type, text)
        assert text or event.type in ("run_paused", "run_resumed")
    assert seen <= set(EVENT_ADAPTER.json_schema()["discriminator"]["mapping"])
