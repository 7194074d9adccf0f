"""Parsing of endpoint answers: complete and streamed, valid and malformed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.inference.base import Usage
from engine.inference.endpoint.answers import (
    Answer,
    GarbledAnswerError,
    OversizedAnswerError,
    ReportedError,
    read_answer,
    read_json,
    read_usage,
)
from engine.inference.endpoint.model_names import is_same_model
from engine.inference.endpoint.provider_state import MAX_STATE_CHARS, ProviderStateError
from engine.inference.endpoint.streams import StreamedAnswer, events
from engine.tools.formats import checked_arguments
from engine.tools.parser import MAX_RESPONSE_CHARS, NativeCall
from tests.fakes.openai_server import Reply

REPLIES = [
    Reply(content="hello"),
    Reply(content=None, message={"reasoning_content": "let me see"}, calls=[("search", '{"a": 1}')]),
    Reply(content="both", message={"reasoning": "hm"}, calls=[("f", "{}"), ("g", '{"x": "ü\\n"}')]),
    Reply(content="", calls=[("f", '{"cut": ')]),
    Reply(content="", calls=[("submit", "")]),
    Reply(content="half an ans", finish_reason="length"),
    Reply(content=None, message={"refusal": "I cannot help with that"}, finish_reason="content_filter"),
    Reply(content="no usage", usage=None),
    Reply(
        content="signed",
        message={
            "extra_content": {"google": {"thought_signature": "YQ=="}},
            "reasoning_details": [{"type": "reasoning.encrypted", "data": "abc", "index": 0, "format": None}],
        },
        calls=[("f", "{}")],
    ),
]


def whole(reply: Reply) -> Answer:
    return read_answer(reply.body("m"))


def in_parts(reply: Reply) -> Answer:
    streamed = StreamedAnswer()
    for chunk in reply.chunks("m"):
        streamed.add(chunk)
    return read_answer(streamed.body())


def test_streamed_answers_equal_complete_answers() -> None:
    assert [in_parts(reply) for reply in REPLIES] == [whole(reply) for reply in REPLIES]


def test_every_field_of_an_answer_is_read() -> None:
    answer = whole(REPLIES[1])
    assert answer.content == ""
    assert answer.thinking == "let me see"
    assert answer.calls == (NativeCall(name="search", arguments='{"a": 1}'),)
    assert answer.finish_reason == "tool_calls"
    assert whole(REPLIES[2]).thinking == "hm"
    assert [call.name for call in whole(REPLIES[2]).calls] == ["f", "g"]
    assert whole(REPLIES[6]).content == "I cannot help with that"
    assert whole(REPLIES[7]).usage is None


def test_content_parts_are_joined_and_thinking_is_separated() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "why"}]},
        {"type": "text", "text": "because "},
        {"type": "image_url", "image_url": {"url": "x"}},
        "of that",
    ]
    answer = whole(Reply(content=parts))
    assert (answer.content, answer.thinking) == ("because of that", "why")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ('{"a": 1', "not valid JSON"),
        ("[1, 2]", "must be an object"),
        ('{"a": 1, "a": 2}', "gives a key twice"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_malformed_arguments_are_reported_to_the_model(arguments: str, error: str) -> None:
    [call] = whole(Reply(calls=[("f", arguments)])).calls
    assert error in call.error
    assert call.arguments == arguments


@pytest.mark.parametrize("call", [None, "f", {}, {"function": None}, {"function": {"name": 7}}])
def test_calls_without_a_name_are_reported_to_the_model(call: Any) -> None:
    [read] = whole(Reply(message={"tool_calls": [call]})).calls
    assert read.error == "the tool call names no function"


def test_arguments_may_be_an_object_or_missing() -> None:
    calls = [
        {"function": {"name": "f", "arguments": {"a": 1}}},
        {"function": {"name": "g", "arguments": None}},
    ]
    read = whole(Reply(message={"tool_calls": calls})).calls
    assert [(call.arguments, call.error) for call in read] == [({"a": 1}, ""), ({}, "")]


def test_null_arguments_count_as_no_arguments() -> None:
    [call] = whole(Reply(calls=[("finish", "null")])).calls
    assert call == NativeCall(name="finish", arguments="null")
    assert checked_arguments(call.arguments) == {}


def test_only_provider_state_is_kept_and_unchanged() -> None:
    state = {
        "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}],
        "thinking_blocks": [{"a": [1]}],
    }
    call = {"id": "c", "index": 0, "type": "function", "function": {"name": "f"}, "extra_content": {"g": 1}}
    message = {
        **state,
        "tool_calls": [call, {"id": 7}],
        "annotations": [],
        "audio": None,
        "extra_content": None,
    }
    answer = whole(Reply(message=message))
    assert answer.provider_state == {**state, "tool_calls": [{"id": "c", "extra_content": {"g": 1}}, {}]}
    assert whole(Reply(content="plain")).provider_state is None


def test_pieces_of_streamed_provider_state_are_joined() -> None:
    streamed = StreamedAnswer()
    text = {"type": "reasoning.text", "index": 0}
    for details in (
        [{**text, "text": "look "}],
        [{**text, "text": "first"}],
        [{**text, "signature": "s"}, {"type": "reasoning.encrypted", "index": 1, "data": "x"}],
    ):
        streamed.add({"choices": [{"delta": {"reasoning_details": details}}]})
    streamed.add({"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]})
    assert read_answer(streamed.body()).provider_state == {
        "reasoning_details": [
            {**text, "text": "look first", "signature": "s"},
            {"type": "reasoning.encrypted", "index": 1, "data": "x"},
        ]
    }


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("x" * MAX_STATE_CHARS, "longer than"),
        ({"x" * MAX_STATE_CHARS: 1}, "longer than"),
        ([0] * MAX_STATE_CHARS, "longer than"),
        ([[]] * MAX_STATE_CHARS, "longer than"),
        (1 << (14 * MAX_STATE_CHARS), "longer than"),
        (nested(16), "more than 16 levels"),
        (nested(900), "more than 16 levels"),
        ("a\0b", "invalid characters"),
        ({"\ud800": 1}, "invalid characters"),
        ([float("nan")], "not finite"),
    ],
    ids=["text", "name", "values", "lists", "number", "levels", "deep", "nul", "surrogate", "nan"],
)
def test_provider_state_is_bounded(state: Any, words: str) -> None:
    with pytest.raises(ProviderStateError, match=words):
        whole(Reply(message={"extra_content": {"google": state}}))
    with pytest.raises(ProviderStateError, match=words):
        whole(Reply(message={"tool_calls": [{"function": {"name": "f"}, "extra_content": state}]}))
    streamed = StreamedAnswer()
    with pytest.raises(ProviderStateError, match=words):
        streamed.add({"choices": [{"delta": {"extra_content": {"google": state}}}]})


def test_invalid_characters_are_replaced() -> None:
    answer = read_answer(read_json(json.dumps(Reply(content="a\ud800b\0c").body("m")).encode()))
    assert answer.content == "a�b�c"


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"choices": []},
        {"choices": [{}]},
        {"choices": [{"message": "x"}]},
    ],
)
def test_an_answer_without_a_message_is_garbled(body: Any) -> None:
    with pytest.raises(GarbledAnswerError):
        read_answer(body)


@pytest.mark.parametrize("value", [5, True, "x", {"a": 1}])
def test_a_field_of_another_type_than_a_list_is_garbled(value: Any) -> None:
    with pytest.raises(GarbledAnswerError, match="choices is a JSON"):
        StreamedAnswer().add({"choices": value})
    with pytest.raises(GarbledAnswerError, match="tool_calls is a JSON"):
        StreamedAnswer().add({"choices": [{"delta": {"tool_calls": value}}]})
    with pytest.raises(GarbledAnswerError, match="tool_calls is a JSON"):
        whole(Reply(message={"tool_calls": value}))


@pytest.mark.parametrize(
    "logprob",
    [None, True, "x", [], float("nan"), 10**400],
    ids=["none", "bool", "text", "list", "nan", "long"],
)
def test_a_log_probability_that_is_no_float_is_garbled(logprob: Any) -> None:
    body = Reply(content="a").body("m")
    body["choices"][0]["logprobs"] = {"content": [{"token": "a", "logprob": logprob}]}
    with pytest.raises(GarbledAnswerError, match="not a number"):
        read_answer(body)


@pytest.mark.parametrize(
    "body", [{"error": {"code": 502}}, {"choices": [{"error": {"code": 502}, "message": {"content": ""}}]}]
)
def test_an_error_inside_an_answer_is_raised(body: Any) -> None:
    with pytest.raises(ReportedError) as reported:
        read_answer(body)
    assert reported.value.body == {"code": 502}


@pytest.mark.parametrize("data", [b"", b"<html>", b"{", b"[" * 100_000, b"\xff\xfe"])
def test_invalid_json_is_garbled(data: bytes) -> None:
    with pytest.raises(GarbledAnswerError, match="not JSON"):
        read_json(data)


def test_oversized_answers_are_rejected() -> None:
    with pytest.raises(OversizedAnswerError):
        whole(Reply(content="x" * (MAX_RESPONSE_CHARS + 1)))
    streamed = StreamedAnswer()
    chunk = {"choices": [{"index": 0, "delta": {"content": "x" * (1 << 20)}}]}
    for _ in range(MAX_RESPONSE_CHARS >> 20):
        streamed.add(chunk)
    with pytest.raises(OversizedAnswerError):
        streamed.add(chunk)
    assert streamed.size <= MAX_RESPONSE_CHARS + (1 << 20)


def test_a_truncated_stream_is_garbled() -> None:
    streamed = StreamedAnswer()
    for chunk in Reply(content="hello").chunks("m")[:-2]:
        streamed.add(chunk)
    with pytest.raises(GarbledAnswerError, match="middle of the answer"):
        streamed.body()


def test_calls_without_an_index_are_distinguished_by_their_identifier() -> None:
    streamed = StreamedAnswer()
    for identifier, name in (("a", "f"), ("b", "g")):
        call = {"id": identifier, "function": {"name": name, "arguments": '{"n":'}}
        streamed.add({"choices": [{"delta": {"tool_calls": [call]}}]})
        streamed.add({"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "1}"}}]}}]})
    streamed.add({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    calls = read_answer(streamed.body()).calls
    assert [(call.name, call.arguments) for call in calls] == [("f", '{"n":1}'), ("g", '{"n":1}')]


async def _parts(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_events_are_read_from_chunks_of_any_size(size: int) -> None:
    text = ': ping\r\n\r\nevent: x\ndata: {"a": "line\u2028separator"}\n\ndata:{"b": 2}\r\n\r\n'
    data = f"{text}data: [DONE]\n\nrest".encode()
    cut = _parts(*(data[offset : offset + size] for offset in range(0, len(data), size)))
    assert [event async for event in events(cut)] == [{"a": "line\u2028separator"}, {"b": 2}]


def test_usage_includes_token_counts_and_cost() -> None:
    reported = {
        "prompt_tokens": 1000,
        "completion_tokens": 200,
        "total_tokens": 1200,
        "prompt_tokens_details": {"cached_tokens": 600},
        "completion_tokens_details": {"reasoning_tokens": 150},
    }
    usage = read_usage(reported, input_price=2.0, cached_price=0.5, output_price=10.0)
    assert usage == Usage(
        prompt_tokens=1000,
        cached_tokens=600,
        generated_tokens=200,
        thinking_tokens=150,
        cost=(400 * 2.0 + 600 * 0.5 + 200 * 10.0) / 1e6,
    )
    assert read_usage(reported, input_price=2.0, cached_price=None, output_price=10.0).cost == pytest.approx(
        (1000 * 2.0 + 200 * 10.0) / 1e6
    )
    assert read_usage(reported, input_price=2.0, cached_price=None, output_price=None).cost is None


def test_thinking_counted_only_in_the_total_is_charged() -> None:
    reported = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 115}
    usage = read_usage(reported, input_price=0.0, cached_price=None, output_price=1.0)
    assert usage.generated_tokens == 105
    assert usage.cost == pytest.approx(105 / 1e6)
    assert usage.thinking_tokens is None


@pytest.mark.parametrize(
    "reported",
    [{}, {"prompt_tokens": "many", "prompt_tokens_details": [], "total_tokens": None}, {"prompt_tokens": -4}],
)
def test_malformed_usage_counts_as_zero(reported: dict[str, Any]) -> None:
    usage = read_usage(reported, input_price=1.0, cached_price=1.0, output_price=1.0)
    assert (usage.prompt_tokens, usage.cached_tokens, usage.generated_tokens, usage.cost) == (0, 0, 0, 0.0)


@pytest.mark.parametrize(
    ("asked", "answered", "same"),
    [
        ("gpt-4o", "gpt-4o", True),
        ("gpt-4o", "gpt-4o-2024-08-06", True),
        ("gpt-4o", "gpt-4o-mini", False),
        ("gpt-4o-2024-08-06", "gpt-4o-2024-11-20", False),
        ("gpt-4o-2024-08-06", "gpt-4o", True),
        ("openai/gpt-4o", "gpt-4o-2024-08-06", True),
        ("Qwen/Qwen3-32B", "qwen3-32b", True),
        ("Qwen/Qwen3-32B", "Qwen/Qwen3-3", False),
        ("claude-sonnet-latest", "claude-sonnet-20250219", True),
        ("m", "", True),
    ],
)
def test_model_comparison_ignores_provider_and_date(asked: str, answered: str, same: bool) -> None:
    assert is_same_model(asked, answered) is same
