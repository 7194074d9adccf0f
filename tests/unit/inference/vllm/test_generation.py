"""Parsing of a generation stream; impossible values are errors, never samples."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.errors import EngineError
from engine.inference.vllm.clients.generation import GenerationStream, generation_body
from tests.unit.models.small import prompt, request


def make_stream(**changes: Any) -> GenerationStream:
    settings: dict[str, Any] = {
        "version": 4, "is_stamped": False, "is_adapter": False, "max_tokens": 5, "stop_ids": frozenset({2}),
        "vocabulary": 100,
    }  # fmt: skip
    return GenerationStream(**settings | changes)


def event(ids: list[Any], *, logprobs: list[Any] | None = None, **choice: Any) -> bytes:
    values = logprobs if logprobs is not None else [-0.5] * len(ids)
    content = [
        {"token_id": token, "logprob": value} for token, value in zip(ids[: len(values)], values, strict=True)
    ]
    return json.dumps({"choices": [{"token_ids": ids, "logprobs": {"content": content}, **choice}]}).encode()


def spans(*parts: tuple[str, int, int]) -> list[dict[str, Any]]:
    return [{"version": version, "start": start, "end": end} for version, start, end in parts]


def test_responses_are_assembled_from_several_events() -> None:
    stream = make_stream()
    stream.add(event([7, 8], logprobs=[-1.0, 0.0]))
    partial = stream.partial()
    assert partial is not None
    assert (partial.ids, partial.versions, partial.stopped) == ((7, 8), (4, 4), False)
    stream.add(event([2], finish_reason="stop", weight_versions=spans(("3", 0, 1), ("4", 1, 3))))
    stream.add(b'{"choices": []}')
    generation = stream.result()
    assert generation.ids == (7, 8, 2)
    assert generation.logprobs == (-1.0, 0.0, -0.5)
    assert generation.versions == (3, 4, 4)
    assert generation.stopped


def test_tokens_without_a_version_have_that_of_their_request() -> None:
    for parts in (None, spans(("default", 0, 1))):
        stream = make_stream(max_tokens=1)
        stream.add(event([7], finish_reason="length", weight_versions=parts))
        assert (stream.result().versions, stream.result().stopped) == ((4,), False)


def test_adapter_tokens_have_the_version_of_the_adapter() -> None:
    stream = make_stream(is_adapter=True, max_tokens=1)
    stream.add(event([7], finish_reason="length", weight_versions=spans(("9", 0, 1))))
    assert stream.result().versions == (4,)


def test_there_is_no_partial_generation_before_the_first_token() -> None:
    assert make_stream().partial() is None


@pytest.mark.parametrize(
    "data",
    [
        b"not json",
        b"[]",
        b'{"choices": [{}, {}]}',
        event([100]),
        event([-1]),
        event([True]),
        event([7], logprobs=[]),
        event([7], logprobs=[float("nan")]),
        event([7], logprobs=[-9999.0]),
        event([7], logprobs=[0.5]),
        event([7], logprobs=[None]),
        event([7]).replace(b'"token_id": 7', b'"token_id": 8'),
        event([2, 7]),
        event([7] * 6),
        event([7], finish_reason="tired"),
        event([7], finish_reason="stop"),
        event([2], finish_reason="length"),
        b'{"choices": [{"token_ids": {"7": 1}}]}',
    ],
)
def test_impossible_events_are_garbage(data: bytes) -> None:
    stream = make_stream()
    stream.add(event([5]))
    with pytest.raises(EngineError) as raised:
        stream.add(data)
    assert raised.value.kind == "garbage"


@pytest.mark.parametrize(
    "parts",
    [
        spans(("3", 1, 2)), spans(("3", 0, 1)), spans(("3", 0, 3)), spans(("x", 0, 2)), spans(("-1", 0, 2)),
        spans(("3", 0, 1), ("4", 0, 2)), [{}], [{"version": 3, "start": 0, "end": 2}],
        [{"version": "3", "start": 0, "end": 10**15}],
    ],
)  # fmt: skip
def test_versions_that_do_not_cover_the_tokens_are_garbage(parts: list[dict[str, Any]]) -> None:
    stream = make_stream(max_tokens=3)
    stream.add(event([7]))

    def end() -> None:
        stream.add(event([8], finish_reason="length", weight_versions=parts))
        stream.result()

    with pytest.raises(EngineError) as raised:
        end()
    assert raised.value.kind == "garbage"
    assert raised.value.tokens.ids[0] == 7


def test_tokens_after_the_end_and_an_end_without_tokens_are_garbage() -> None:
    with pytest.raises(EngineError, match="a response without tokens") as raised:
        make_stream().add(event([], finish_reason="stop"))
    assert raised.value.kind == "garbage"
    stream = make_stream()
    stream.add(event([7, 2], finish_reason="stop"))
    with pytest.raises(EngineError, match="after the end"):
        stream.add(event([8]))


@pytest.mark.parametrize(("code", "kind"), [(500, "lost"), (400, "refused"), (None, "lost")])
def test_server_errors_keep_the_tokens_received_so_far(code: int | None, kind: str) -> None:
    stream = make_stream()
    stream.add(event([7]))
    with pytest.raises(EngineError, match="EngineCore") as raised:
        stream.add(json.dumps({"error": {"message": "EngineCore died", "code": code}}).encode())
    assert raised.value.kind == kind
    assert raised.value.tokens.ids == (7,)


def test_an_abort_before_the_first_token_is_accepted() -> None:
    stream = make_stream()
    stream.add(event([], finish_reason="abort"))
    assert stream.finish_reason == "abort"


def test_the_body_contains_only_the_sampling_of_the_request() -> None:
    asked = request(prompt(4), seed=2**64 + 3, stop=9, temperature=0.5, top_p=0.9)
    body = generation_body(asked, request_id="r", model="policy", salt="")
    assert body["token_ids"] == prompt(4)
    assert "cache_salt" not in body
    sampling = body["sampling_params"]
    assert sampling["seed"] == 3
    assert sampling["stop_token_ids"] == [9]
    assert sampling["ignore_eos"] is True
    assert (sampling["temperature"], sampling["top_p"]) == (0.5, 0.9)
    assert generation_body(asked, request_id="r", model="policy", salt="v1")["cache_salt"] == "v1"
