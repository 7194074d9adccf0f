"""Steps of an unfinished rollout in a run's spool, with their responses."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from engine.agent.replay import FinishedTurn
from engine.events.replay import SampledResponse
from engine.events.token_block import decode, encode
from engine.inference.base import ChatResponse, Generation, Usage
from engine.tokens import TokenRecord
from engine.tools.parser import NativeCall
from engine.types import Step, ToolCall

RecordedTurns = Callable[[], Sequence[FinishedTurn]]
"""Function that reads the finished turns of a rollout from an earlier attempt's record."""
_STEP_FIELDS = tuple(field.name for field in fields(Step) if field.name != "call")
_USAGE_FIELDS = tuple(field.name for field in fields(Usage))


class Span(NamedTuple):
    """Byte range of an event in a spool."""

    start: int
    end: int


def sampled_response(turn: FinishedTurn) -> SampledResponse:
    """Return a turn's response as events record it; its usage is in the step itself."""
    response = turn.response
    common: dict[str, Any] = {"stopped": response.stopped, "waited_seconds": turn.waited_seconds}
    if isinstance(response, Generation):
        record = TokenRecord(
            ids=np.array(response.ids, np.int32),
            mask=np.ones(len(response.ids), np.bool_),
            logprobs=np.array(response.logprobs, np.float32),
            versions=np.array(response.versions, np.int32),
        )
        return SampledResponse(tokens=base64.b64encode(encode(record)).decode(), **common)
    calls = [{"name": call.name, "arguments": call.arguments, "error": call.error} for call in response.calls]
    message = {"content": response.content, "thinking": response.thinking, "calls": calls}
    return SampledResponse(message=message, **common)


def read_turns(spool: Path, spans: Sequence[Span], *, version: int | None = None) -> list[FinishedTurn]:
    """Read turns from a spool.

    Args:
        spool: the run's spool.
        spans: byte ranges of the rollout's ``step_finished`` events, from the first step on.
        version: required policy version of all turns, else none is returned; None accepts any.
    """
    turns = []
    for event in read_events(spool, spans):
        if event.get("sampled") is None:
            break  # recorded without the response that a replay needs
        turns.append(_turn(event))
    if version is not None and any(turn.step.policy_version != version for turn in turns):
        return []
    return turns


def read_events(spool: Path, spans: Sequence[Span]) -> Iterator[dict[str, Any]]:
    """Yield the events at byte ranges of a spool."""
    with spool.open("rb") as stream:
        for span in spans:
            stream.seek(span.start)
            yield json.loads(stream.read(span.end - span.start))


def recorded_step(event: Mapping[str, Any]) -> Step:
    """Return the step of a ``step_finished`` event."""
    call = ToolCall(name=event["tool"], arguments=event["arguments"]) if event["tool"] else None
    return Step(call=call, **{name: event[name] for name in _STEP_FIELDS if name in event})


def _turn(event: Mapping[str, Any]) -> FinishedTurn:
    sampled = SampledResponse.model_validate(event["sampled"])
    return FinishedTurn(
        step=recorded_step(event),
        response=_response(event, sampled),
        waited_seconds=sampled.waited_seconds,
    )


def _response(event: Mapping[str, Any], sampled: SampledResponse) -> Generation | ChatResponse:
    if (message := sampled.message) is not None:
        return ChatResponse(
            content=message["content"],
            thinking=message["thinking"],
            calls=tuple(NativeCall(**call) for call in message["calls"]),
            stopped=sampled.stopped,
            usage=Usage(**{name: event[name] for name in _USAGE_FIELDS}),
            provider_state=event.get("provider_state"),
        )
    tokens = decode(base64.b64decode(sampled.tokens, validate=True))
    return Generation(
        ids=tuple(tokens.ids.tolist()),
        logprobs=tuple(tokens.logprobs.tolist()),
        versions=tuple(tokens.versions.tolist()),
        stopped=sampled.stopped,
    )
