"""Metrics, prompt log-probabilities and checksums, parsed and checked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.errors import EngineError
from engine.inference.vllm.clients.facts import EngineMetrics
from engine.inference.vllm.clients.responses import (
    Checksums,
    PromptLogprobs,
    check_checksums,
    parse_metrics,
    read_answer,
    read_prompt_logprobs,
)

LABELS = 'engine="0",model_name="policy"'
METRICS = f"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{{LABELS}}} 3.0
vllm:num_requests_waiting{{{LABELS}}} 2.0
vllm:num_requests_waiting_by_reason{{engine="0",reason="capacity"}} 2.0
vllm:kv_cache_usage_perc{{{LABELS}}} 0.25
vllm:prefix_cache_queries_total{{{LABELS}}} 1000.0
vllm:prefix_cache_queries_created{{{LABELS}}} 1.7e+09
vllm:prefix_cache_hits_total{{{LABELS}}} 900.0
vllm:num_preemptions_total{{{LABELS}}} 1.0
vllm:prompt_tokens_total{{{LABELS}}} 1.5e+03
vllm:generation_tokens_total{{{LABELS}}} 70.0
vllm:cache_config_info{{block_size="32",engine="0",kv_cache_size_tokens="52416"}} 1.0
"""


def test_metrics_are_parsed() -> None:
    assert parse_metrics(METRICS) == EngineMetrics(
        running=3, waiting=2, kv_use=0.25, cache_tokens=52416, generated_tokens=70, prompt_tokens=1500,
        prefix_queries=1000, prefix_hits=900,
    )  # fmt: skip


def test_metrics_of_several_engines_are_aggregated() -> None:
    second = METRICS.replace('engine="0"', 'engine="1"').replace("0.25", "0.75")
    both = parse_metrics(METRICS + second)
    assert (both.running, both.kv_use, both.cache_tokens) == (6, 0.5, 2 * 52416)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>",
        METRICS.replace("kv_cache_size_tokens", "other"),
        METRICS.replace("vllm:num_requests_running", "vllm:running"),
        METRICS.replace(" 0.25", " 1.5"),
        METRICS.replace(" 3.0", " NaN"),
    ],
)
def test_incomplete_or_invalid_metrics_are_garbage(text: str) -> None:
    with pytest.raises(EngineError) as raised:
        parse_metrics(text)
    assert raised.value.kind == "garbage"


def _prompt(content: Any) -> PromptLogprobs:
    return read_answer(PromptLogprobs, json.dumps(content).encode())


def test_prompt_logprobs_are_parsed() -> None:
    entries = [None, {"5": {"logprob": -1.5}}, {"6": {"logprob": -2.0}, "9": {"logprob": -0.1}}]
    assert read_prompt_logprobs(_prompt({"prompt_logprobs": entries}), [4, 5, 6]) == [-1.5, -2.0]


@pytest.mark.parametrize(
    "content",
    [
        None,
        {"prompt_logprobs": None},
        {"prompt_logprobs": [None, {"5": {"logprob": -1}}]},
        {"prompt_logprobs": [None, {"5": {"logprob": -1}}, {"7": {"logprob": -1}}]},
        {"prompt_logprobs": [None, {"5": {"logprob": -9999.0}}, {"6": {"logprob": -1}}]},
        {"prompt_logprobs": [None, {"5": -1}, {"6": {"logprob": -1}}]},
    ],
)
def test_prompt_logprobs_of_other_tokens_are_garbage(content: Any) -> None:
    with pytest.raises(EngineError) as raised:
        read_prompt_logprobs(_prompt(content), [4, 5, 6])
    assert raised.value.kind == "garbage"


def test_malformed_checksums_and_those_of_empty_tensors_are_garbage() -> None:
    good = {"tp0:a": "1" * 64, "tp0:b": "2" * 64}
    assert check_checksums(good) == good
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    answers: list[Any] = [None, {}, [], {"a": 3}, good | {"tp0:c": empty}]
    for bad in answers:
        answer = json.dumps({"checksums": bad}).encode()
        with pytest.raises(EngineError) as raised:
            check_checksums(read_answer(Checksums, answer).checksums)
        assert raised.value.kind == "garbage"
