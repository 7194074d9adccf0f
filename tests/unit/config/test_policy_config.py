"""Validation of policy settings, with errors that name the setting."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.access.places import EndpointPlace, places
from engine.config.recipes import resolve
from engine.config.run import CommitCurateRun, CurateRun, RolloutRun, parse_run_config, with_overrides
from engine.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"policy.vllm.replicas": 2}, {"policy.vllm.replicas"}),
        (
            {"policy.vllm.replicas": 2, "policy.vllm.in_flight": "keep"},
            {"policy.vllm.replicas", "policy.vllm.in_flight"},
        ),
        (
            {"policy.engine": "vllm", "policy.vllm.addresses": ["http://h:1"], "policy.vllm.replicas": 2},
            {"policy.vllm.replicas"},
        ),
        ({"policy.engine": "vllm", "policy.vllm.addresses": ["http://h:1", "http://h:1"]}, {"policy.vllm"}),
    ],
)
def test_settings_without_effect_are_refused_by_name(settings: dict[str, Any], wrong: set[str]) -> None:
    data = resolve("quickstart", {}).model_dump(mode="json")
    with pytest.raises(ConfigError) as raised:
        parse_run_config(with_overrides(data, settings))
    assert {problem.setting for problem in raised.value.problems} == wrong


def test_agent_thinking_is_refused_for_endpoints() -> None:
    data = resolve("quickstart-oracle", {}).model_dump(mode="json")
    data["policy"] = {"type": "endpoint", "endpoint": "hosted", "model": "m"}
    assert isinstance(parse_run_config(data), RolloutRun)
    with pytest.raises(ConfigError, match="reasoning_effort, or by policy.extra_body") as raised:
        parse_run_config(with_overrides(data, {"agent.thinking": "off"}))
    assert {problem.setting for problem in raised.value.problems} == {"agent.thinking"}


ENDPOINT = {"policy.type": "endpoint", "policy.model": "m", "policy.endpoint": "lab"}


def test_endpoint_accepts_additional_request_fields() -> None:
    extra = {"top_k": 20, "chat_template_kwargs": {"enable_thinking": False}, "provider": {"order": ["a"]}}
    config = resolve("quickstart-evaluate", {**ENDPOINT, "policy.extra_body": extra})
    assert config.model_dump(mode="json")["policy"]["extra_body"] == extra
    assert parse_run_config(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"temperature": 0}, "'temperature' is set by policy.temperature: leave it out"),
        ({"max_completion_tokens": 5}, "is set by policy.token_limit_name"),
        ({"messages": []}, "'messages' cannot be set: the run sets it"),
        ({"models": ["a/other"]}, "'models' cannot be set"),
        ({"a\nb": 1}, "cannot be set"),
        ({"x": "y" * 8000}, "characters, above 8000"),
        ({"x": float("nan")}, "not JSON"),
        ("top_k=20", "valid dictionary|valid mapping"),
    ],
)
def test_reserved_and_invalid_request_fields_are_refused(extra: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        resolve("quickstart-evaluate", {**ENDPOINT, "policy.extra_body": extra})
    assert {problem.setting for problem in raised.value.problems} == {"policy.extra_body"}


def test_changed_policy_type_replaces_the_policy_settings() -> None:
    changed = {"policy.type": "endpoint", "policy.model": "m", "policy.endpoint": "http://127.0.0.1:1/v1"}
    config = resolve("quickstart-evaluate", {**changed, "policy.temperature": 0.5})
    assert config.model_dump()["policy"]["temperature"] == 0.5
    same = resolve("quickstart-evaluate", {"policy.max_batch": 3}).model_dump(mode="json")
    kept = parse_run_config(with_overrides(same, {"policy.type": "transformer"}))
    assert kept.model_dump()["policy"]["max_batch"] == 3


def test_a_spend_limit_needs_prices() -> None:
    endpoint = {"policy.type": "endpoint", "policy.model": "m", "policy.endpoint": "lab"}
    with pytest.raises(ConfigError, match="spend_limit: needs input_price and output_price"):
        resolve("quickstart-evaluate", {**endpoint, "policy.spend_limit": 5})


@pytest.mark.parametrize("recipe", ["collect", "quickstart-evaluate"])
def test_run_without_training_refuses_weight_publication_settings(recipe: str) -> None:
    vllm = {"policy.engine": "vllm", "policy.vllm.replicas": 2}
    resolve(recipe, vllm)
    with pytest.raises(ConfigError, match="does not train") as raised:
        resolve(recipe, {**vllm, "policy.vllm.transfer": "disk", "policy.vllm.in_flight": "keep"})
    wrong = {problem.setting for problem in raised.value.problems}
    assert wrong == {"policy.vllm.transfer", "policy.vllm.in_flight"}


def test_the_models_of_a_curation_are_sections_of_their_own() -> None:
    writer = {
        "curation.writer.type": "endpoint",
        "curation.writer.endpoint": "lab",
        "curation.writer.model": "m",
    }
    config = resolve("commits-dataset", {**writer, "curation.writing.attempts": 2})
    assert isinstance(config, CommitCurateRun)
    assert (config.curation.writer.type, config.curation.judge.type) == ("endpoint", "none")
    assert [use.name for use in places(config) if isinstance(use.place, EndpointPlace)] == [
        "curation.writer.endpoint"
    ]
    again = with_overrides(config.model_dump(mode="json"), {"curation.writer.type": "none"})
    assert again["curation"]["writer"] == {"type": "none"}
    with pytest.raises(ConfigError, match="no effect without a writer or judge") as raised:
        resolve("commits-dataset", {"curation.writing.attempts": 2})
    assert raised.value.problems[0].setting == "curation.writing.attempts"
    judge = {name.replace("writer", "judge"): value for name, value in writer.items()}
    with pytest.raises(ConfigError, match="no effect without a writer: leave it out"):
        resolve("commits-dataset", {**judge, "curation.writing.tests": False})
    resolve("commits-dataset", {**judge, "curation.writing.timeout_s": 9})
    with pytest.raises(ConfigError) as raised:
        resolve(
            "commits-dataset", {**writer, "curation.writer.temperature": -1, "curation.judge.type": "oracle"}
        )
    assert {problem.setting for problem in raised.value.problems} == {
        "curation.writer.temperature", "curation.judge.type",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="use a vLLM server as an endpoint"):
        resolve("commits-dataset", {"curation.judge.type": "transformer", "curation.judge.engine": "vllm"})


def test_a_writer_of_faults_replaces_the_kinds_of_injected_ones() -> None:
    writer = {
        "curation.writer.type": "endpoint",
        "curation.writer.endpoint": "lab",
        "curation.writer.model": "m",
    }
    with pytest.raises(ConfigError, match="no effect on the faults of a writer") as raised:
        resolve("quickstart-dataset", writer)
    assert raised.value.problems[0].setting == "curation.fault_kinds"
    settings = {**writer, "curation.fault_kinds": [], "curation.writing.attempts": 2}
    config = resolve("quickstart-dataset", settings)
    assert isinstance(config, CurateRun)
    assert config.curation.writer.type == "endpoint"
    assert [use.name for use in places(config) if isinstance(use.place, EndpointPlace)] == [
        "curation.writer.endpoint"
    ]
    with pytest.raises(ConfigError, match="no effect without a writer") as raised:
        resolve("quickstart-dataset", {"curation.writing.attempts": 2})
    assert raised.value.problems[0].setting == "curation.writing.attempts"
