"""What enumerations, codes and events are called on pages."""

from __future__ import annotations

from enum import StrEnum

import pytest

from engine.events.health import RowStatus
from engine.events.types import EVENT_ADAPTER
from engine.types import (
    CounterfactualOutcome,
    FindingKind,
    RunKind,
    TerminationReason,
    TestKind,
    TestOutcome,
    Verdict,
)
from tests.builders.kind_builders import KINDS, make_kind
from tests.builders.page_builders import make_yard
from webapp.contexts.event_words import event_words
from webapp.contexts.words import COUNTERFACTUALS, WORDS, in_words
from webapp.contexts.words import KINDS as KIND_WORDS
from webapp.models import Event
from webapp.templatetags import yard


@pytest.mark.parametrize(
    "values",
    [TerminationReason, Verdict, FindingKind, TestKind, TestOutcome, RowStatus],
    ids=lambda values: values.__name__,
)
def test_every_value_is_words(values: type[StrEnum]) -> None:
    assert not [value for value in values if "_" in in_words(value)]


def test_values_that_mean_several_things_have_lists_of_their_own() -> None:
    assert set(KIND_WORDS) == set(RunKind)
    assert in_words(CounterfactualOutcome.CAUGHT, COUNTERFACTUALS) == "mutated tests passed"
    assert in_words(RowStatus.FLAKY) == "flaky"
    assert yard.failure_words("memory") == "out of memory"
    assert yard.words("memory") == "Memory"


def test_chips_show_words() -> None:
    assert "context limit" in yard.termination_chip("max_context")
    assert "infrastructure failed" in yard.chip("infra_error")
    assert "masked: infrastructure failed" in yard.mask_chip(False, "infrastructure", None)


def test_a_value_without_an_entry_loses_its_underscores() -> None:
    assert in_words("some_new_value") == "some new value"
    assert not [value for value in WORDS if not value.isascii()]


@pytest.mark.django_db
def test_every_event_is_a_sentence() -> None:
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


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (
            {"type": "run_started", "host": "h", "pid": 7, "resumed_from": 3},
            "on h, process 7; resumed after iteration 3",
        ),
        ({"type": "run_finished", "state": "failed", "reason": "no GPU"}, "failed: no GPU"),
        ({"type": "task_validated", "record": {"task_id": "t", "status": "noop_passes"}}, "t: no-op passes"),
        (
            {"type": "trajectory_finished", "termination": "max_steps", "verdict": "test_timeout",
             "reward": 0},
            "step limit, tests timed out, reward 0",
        ),
        (
            {"type": "evaluation_finished", "name": "heldout", "iteration": 3, "solve_rate": 0.5,
             "interval_low": 0.25, "interval_high": 0.75, "num_tasks": 1},
            "heldout at iteration 3: 50.0 % solved, 95 % [25.0 %, 75.0 %] over 1 task",
        ),
        ({"type": "alert", "code": "entropy_low", "message": "it fell"}, "Entropy collapses: it fell"),
        ({"type": "pool_status", "wanted": 2, "live": 1}, "2 wanted, 0 waiting, 0 starting, 1 live, 0 idle"),
        (
            {"type": "engines_reported", "replicas": [{"state": "left_out"}, {"state": "ready"}]},
            "1 left out, 1 ready",
        ),
        (
            {"type": "group_admitted", "iteration": 2, "task_id": "b", "updates": 1, "replaces": "a"},
            "iteration 2 · b, after 1 update, in place of a",
        ),
        (
            {"type": "batch_selected", "iteration": 2, "groups": [{}], "discarded": [{}, {}]},
            "iteration 2 trains on 1 group, 2 groups discarded",
        ),
        ({"type": "of_tomorrow"}, ""),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)  # fmt: skip
def test_sentences(payload: dict[str, object], words: str) -> None:
    event = Event(type=str(payload["type"]), payload=payload)
    assert event_words(1, event) == (words, "")
