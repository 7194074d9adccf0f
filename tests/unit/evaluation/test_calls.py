"""Counts of tool calls in a model's responses, and the advice that follows."""

from __future__ import annotations

import pytest

from engine.evaluation.calls import CallCounts


def counts(
    responses: int = 17, *, called: int = 0, valid: int = 0, cut: int = 0, tokens: int = 1700
) -> CallCounts:
    return CallCounts(
        responses=responses,
        responses_with_call=called,
        valid_calls=valid,
        responses_cut_off=cut,
        response_tokens=tokens,
        sampling_seconds=20.0 if tokens else 0.0,
    )


@pytest.mark.parametrize(
    ("measured", "advice"),
    [
        (
            counts(),
            "17 of 17 responses held no call in this format: fine-tune first (recipe fine-tune, "
            "conversation.tool_format=xml)",
        ),
        (
            counts(cut=12),
            "12 of 17 responses were cut off, the try stops them at 1,024 tokens: try again with more "
            "(trainyard model try NAME --set agent.max_response=2048)",
        ),
        (
            counts(cut=6),
            "17 of 17 responses held no call in this format, 6 were cut off: raise agent.max_response or "
            "fine-tune first (recipe fine-tune, conversation.tool_format=xml)",
        ),
        (
            counts(called=9, valid=3),
            "3 of 17 responses held a valid call: fine-tune first (recipe fine-tune, "
            "conversation.tool_format=xml)",
        ),
        (
            counts(called=16, valid=15),
            "15 of 17 responses held a valid call: it can be trained in this format",
        ),
        (
            counts(called=12, valid=12, cut=5),
            "12 of 17 responses held a valid call, 5 were cut off: raise agent.max_response",
        ),
    ],
)
def test_advice_names_what_was_seen_and_what_to_do(measured: CallCounts, advice: str) -> None:
    assert measured.advice("xml", max_response=1024) == advice


def test_advice_without_responses_is_about_the_context() -> None:
    assert "agent.max_context" in counts(0, tokens=0).advice("xml", max_response=1024)


def test_rates_are_shares_of_responses_and_unknown_without_them() -> None:
    measured = counts(called=9, valid=3, cut=12)
    assert (measured.call_rate, measured.valid_rate, measured.cut_rate) == (9 / 17, 3 / 17, 12 / 17)
    assert (measured.mean_tokens, measured.tokens_per_s) == (100.0, 85.0)
    assert CallCounts.of_summary({**measured.summary(), "iterations": 1}) == measured
    assert CallCounts.of_summary({"iterations": 1}) is None
    for hostile in ("17", None, -1, float("nan")):
        assert CallCounts.of_summary({**measured.summary(), "responses": hostile}) is None
    empty = counts(0, tokens=0)
    assert (empty.call_rate, empty.mean_tokens, empty.tokens_per_s) == (None, None, None)
