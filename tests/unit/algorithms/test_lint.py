"""The configuration linter: errors for contradictions, warnings for inert settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import run as engine_run
from engine.algorithms.lint import lint, lint_data
from engine.config.contradictions import LintFinding
from engine.config.presets import PRESETS
from engine.config.recipes import RECIPES, resolve
from engine.config.run import TrainRun, with_overrides
from engine.errors import ConfigError


def findings(**overrides: Any) -> list[LintFinding]:
    data = RECIPES["quickstart"]().model_dump(mode="json")
    return lint_data(
        with_overrides(data, {key.replace("__", "."): value for key, value in overrides.items()})
    )


def warnings(**algorithm: Any) -> list[tuple[str, str]]:
    reported = findings(**{f"algorithm__{key}": value for key, value in algorithm.items()})
    assert all(finding.severity == "warning" for finding in reported), reported
    return [(finding.setting.removeprefix("algorithm."), finding.message) for finding in reported]


DELIBERATE = {"deepswe-32b-script": ["algorithm.clip_low", "algorithm.clip_high"]}
"""Inert settings that a recipe keeps as published; its script takes one optimizer step per batch."""


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_recipes_have_no_unexpected_warnings(recipe: str) -> None:
    run = RECIPES[recipe]()
    reported = lint_data(run.model_dump(mode="json"))
    assert [finding.setting for finding in reported] == DELIBERATE.get(recipe, [])
    if isinstance(run, TrainRun):
        assert lint(run) == reported


@pytest.mark.parametrize("preset", sorted(set(PRESETS) - {"rloo"}))
def test_presets_have_no_warnings(preset: str) -> None:
    assert warnings(preset=preset) == []


@pytest.mark.parametrize(
    ("settings", "setting", "message"),
    [
        ({"device": "cpu", "precision": "bf16"}, "precision", "slower than f32"),
        ({"device": "cpu", "optimizer": "adamw_8bit"}, "optimizer", "on a CPU it costs time"),
        ({"lora_alpha": 32.0}, "lora_alpha", "has no effect without adapters"),
        ({"lora_targets": ("q_proj",)}, "lora_targets", "has no effect without adapters"),
    ],
)
def test_ineffective_trainer_settings_are_warned_of(
    settings: dict[str, Any], setting: str, message: str
) -> None:
    (finding,) = findings(**{f"trainer__{key}": value for key, value in settings.items()})
    assert (finding.severity, finding.setting) == ("warning", f"trainer.{setting}")
    assert message in finding.message
    assert findings(trainer__precision="bf16", trainer__lora_rank=8, trainer__lora_alpha=32.0) == []


def test_rloo_with_two_optimizer_steps_per_batch_is_warned_of() -> None:
    ((setting, message),) = warnings(preset="rloo")
    assert setting == "ratio"
    assert "2 optimizer steps of a batch (trainer.minibatches)" in message
    assert findings(algorithm__preset="rloo", trainer__minibatches=1) == []


CONTRADICTIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"policy__temperature": 0}, "policy.temperature", "greedy siblings identical"),
    ({"policy__top_p": 0.9}, "policy.top_p", "must be 1"),
    ({"rollout__group_size": 1}, "rollout.group_size", "leave_one_out"),
    ({"rollout__group_size": 1, "algorithm__baseline": "group_mean"}, "rollout.group_size", "group_mean"),
    (
        {"rollout__group_size": 1, "algorithm__baseline": "none", "algorithm__dynamic_sampling": True},
        "rollout.group_size",
        "dynamic_sampling",
    ),
    ({"trainer__minibatches": 9}, "trainer.minibatches", "exceeds trainer.tasks_per_iteration"),
    ({"agent__max_response": 4096}, "agent.max_response", "exceeds agent.max_context"),
    ({"agent__token_warning": 65_536}, "agent.token_warning", "leaves nothing of agent.max_context"),
    ({"algorithm__overlong_buffer": 4096}, "algorithm.overlong_buffer", "4096 tokens exceed"),
    (
        {"policy__engine": "vllm", "policy__vllm__transfer": "nccl", "trainer__lora_rank": 8},
        "policy.vllm.transfer",
        "adapters are sent as files",
    ),
    ({"policy__engine": "vllm", "trainer__lora_rank": 513}, "trainer.lora_rank", "the highest that vLLM"),
    ({"algorithm__clip_low": 2}, "algorithm.clip_low", "less than or equal to 1"),
    ({"algorithm__clip_hihg": 1}, "algorithm.clip_hihg", "unknown setting"),
    ({"algorithm__preset": "ppo"}, "algorithm.preset", "Input should be 'grpo'"),
]


@pytest.mark.parametrize(("overrides", "setting", "message"), CONTRADICTIONS)
def test_contradictions_are_errors_of_a_setting_and_do_not_parse(
    overrides: dict[str, Any], setting: str, message: str
) -> None:
    (finding,) = findings(**overrides)
    assert (finding.severity, finding.setting) == ("error", setting)
    assert message in finding.message
    with pytest.raises(ConfigError, match=setting):
        resolve("quickstart", {key.replace("__", "."): value for key, value in overrides.items()})


def test_a_semicolon_in_a_value_does_not_split_a_finding() -> None:
    (finding,) = findings(algorithm__filtered_reasons=["env_error; policy.seed: x"])
    assert (finding.severity, finding.setting) == ("error", "algorithm.filtered_reasons.0")
    config = RECIPES["import-dataset"]().model_dump(mode="json")
    (finding,) = lint_data(with_overrides(config, {"importing.format": "x; seed: z"}))
    assert finding.setting == "importing.format"
    assert finding.message.startswith("there is no format 'x; seed: z'; there are: ")


def test_a_group_of_one_is_allowed_with_a_batch_wide_baseline() -> None:
    assert findings(rollout__group_size=1, algorithm__preset="reinforce_pp") == []


def test_clip_settings_are_inert_with_one_update_per_batch() -> None:
    messages = {f.setting: f.message for f in findings(trainer__minibatches=1)}
    message = "has no effect: one update per batch (trainer.minibatches = 1)"
    assert messages == {"algorithm.clip_low": message, "algorithm.clip_high": message}


@pytest.mark.parametrize(
    ("settings", "setting", "message"),
    [
        (
            {"aggregation": "token_mean", "normalisation_length": 99},
            "normalisation_length",
            "constant_length",
        ),
        ({"kl_coefficient": 0.1}, "kl_coefficient", "without an estimator"),
        ({"kl_placement": "reward"}, "kl_placement", "without an estimator"),
        ({"kl": "k3"}, "kl", "kl_coefficient is 0"),
        ({"kl": "k1", "kl_coefficient": 0.1}, "kl", "expected gradient of zero"),
        ({"kl": "k3", "kl_coefficient": 0.1, "kl_placement": "reward"}, "kl", "k1 does"),
        ({"std_normalisation": "group"}, "std_normalisation", "m/(m − 1) times GRPO's"),
        ({"baseline": "none", "std_normalisation": "batch"}, "std_normalisation", "no baseline centres"),
        ({"baseline": "batch_mean", "std_normalisation": "group"}, "std_normalisation", "nearly uniform"),
        ({"ratio": "none", "clip_high": 0.5}, "clip_high", "no ratio is clipped"),
        ({"ratio": "cispo", "dual_clip": 3.0}, "dual_clip", "has no effect with algorithm.ratio = cispo"),
        ({"dual_clip": 1.2}, "dual_clip", "within the clip's own range"),
        ({"ratio": "sequence", "aggregation": "sequence_mean"}, "clip_high", "geometric mean"),
        ({"preset": "gspo", "aggregation": "token_mean"}, "aggregation", "weighs a trajectory by its length"),
        ({"clip_low": 1}, "clip_low", "no lower bound"),
        ({"aggregation": "token_sum"}, "aggregation", "grows with the batch"),
        ({"filtered_reasons": [], "denominator": "kept"}, "denominator", "nothing is filtered"),
        (
            {"filtered_reasons": [], "filtered_baseline": "keep_zero"},
            "filtered_baseline",
            "nothing is filtered",
        ),
        ({"filtered_reasons": ["submitted"]}, "filtered_reasons", "finished properly"),
        ({"importance_high": 5.0}, "importance_high", "without algorithm.importance_correction"),
        ({"importance_low": 0.5}, "importance_low", "without algorithm.importance_correction"),
        ({"importance_correction": "token_tis", "importance_high": 0.5}, "importance_high", "excludes 1"),
        ({"importance_correction": "token_tis", "importance_low": 1.5}, "importance_low", "excludes 1"),
        ({"importance_correction": "icepop"}, "importance_low", "open below"),
        ({"overlong_buffer": 0.1}, "overlong_buffer", "trajectories that fill the context are filtered"),
        ({"preset": "dapo", "overlong_penalty": 0}, "overlong_buffer", "overlong_penalty is 0"),
        ({"dynamic_sampling": True, "baseline": "batch_mean"}, "dynamic_sampling", "have a signal"),
        ({"max_resampling_rounds": 9}, "max_resampling_rounds", "without algorithm.dynamic_sampling"),
    ],
)
def test_inert_and_surprising_settings_are_warned_of(
    settings: dict[str, Any], setting: str, message: str
) -> None:
    reported = warnings(**settings)
    assert setting in dict(reported)
    assert any(message in text for name, text in reported if name == setting)


def test_the_engine_prints_warnings_before_anything_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[str] = []

    def attempt(run_dir: Path, *_: Any, **__: Any) -> int:
        started.append(capsys.readouterr().err)
        return 0

    monkeypatch.setattr(engine_run, "run_attempt", attempt)
    arguments = ["--recipe", "quickstart", "--set", "trainer.minibatches=1", "--home", str(tmp_path)]
    assert engine_run.main(arguments) == 0
    message = "has no effect: one update per batch (trainer.minibatches = 1)"
    assert f"warning: algorithm.clip_high: {message}" in started[0].splitlines()


def test_the_engine_refuses_contradictions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["--recipe", "quickstart", "--set", "policy.temperature=0", "--home", str(tmp_path)]
    assert engine_run.main(arguments) == 1
    assert "error: policy.temperature: 0 makes greedy siblings identical" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
