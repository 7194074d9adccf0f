"""Presets: composition, resolution, overrides and descriptions."""

from __future__ import annotations

import json
import math
from typing import Any, get_args

import pytest

from engine.algorithms.describe import changed_settings, describe
from engine.config.base import parse_settings
from engine.config.learning.algorithm import AlgorithmConfig, parse_algorithm
from engine.config.presets import PRESETS, PresetName
from engine.config.recipes import RECIPES, resolve
from engine.config.run import TrainRun, parse_run_config, with_overrides
from engine.errors import ConfigError

NAMES = sorted(PRESETS)


def test_every_preset_name_has_a_composition() -> None:
    assert set(get_args(PresetName)) == set(PRESETS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # (baseline, std, ratio, aggregation, kl, placement, clip, filtered)
        ("grpo", ("group_mean", "group", "token", "sequence_mean", "k3", "loss", (0.2, 0.2), 0)),
        ("dr_grpo", ("group_mean", "none", "token", "constant_length", "none", "loss", (0.2, 0.2), 0)),
        ("rloo", ("leave_one_out", "none", "none", "constant_length", "k1", "reward", (0.2, 0.28), 0)),
        ("dapo", ("group_mean", "group", "token", "token_mean", "none", "loss", (0.2, 0.28), 0)),
        ("gspo", ("group_mean", "group", "sequence", "sequence_mean", "none", "loss", (3e-4, 4e-4), 0)),
        ("cispo", ("group_mean", "group", "cispo", "token_mean", "none", "loss", (1.0, 4.0), 0)),
        ("reinforce_pp", ("batch_mean", "batch", "token", "token_mean", "k1", "reward", (0.2, 0.2), 0)),
        ("grpo_pp", ("leave_one_out", "none", "token", "constant_length", "none", "loss", (0.2, 0.28), 5)),
    ],
)
def test_preset_compositions_match_the_papers(name: Any, expected: tuple[Any, ...]) -> None:
    config = AlgorithmConfig(preset=name)
    assert expected == (
        config.baseline, config.std_normalisation, config.ratio, config.aggregation, config.kl,
        config.kl_placement, (config.clip_low, config.clip_high), len(config.filtered_reasons),
    )  # fmt: skip
    assert config.dynamic_sampling == (name == "dapo")
    assert bool(config.overlong_buffer) == (name == "dapo")


def test_config_and_field_defaults_are_those_of_grpo_pp() -> None:
    assert AlgorithmConfig() == AlgorithmConfig(preset="grpo_pp")
    bare = {name: field.default for name, field in AlgorithmConfig.model_fields.items()}
    assert AlgorithmConfig.model_construct(**bare) == AlgorithmConfig()


def test_explicit_settings_override_the_preset() -> None:
    config = AlgorithmConfig(preset="dapo", clip_high=0.35, filtered_reasons=("max_steps",))
    assert (config.clip_high, config.aggregation, config.kl) == (0.35, "token_mean", "none")
    assert changed_settings(config) == {"clip_high": 0.35, "filtered_reasons": ("max_steps",)}


@pytest.mark.parametrize("name", NAMES)
def test_resolving_is_idempotent_and_records_every_setting(name: Any) -> None:
    resolved = AlgorithmConfig(preset=name, entropy_coefficient=0.001)
    record = json.loads(resolved.model_dump_json())
    assert set(record) == set(AlgorithmConfig.model_fields)
    reparsed = AlgorithmConfig.model_validate(record)
    assert reparsed == resolved
    assert reparsed.model_dump_json() == resolved.model_dump_json()


@pytest.mark.parametrize("recipe", sorted(name for name, make in RECIPES.items() if make().kind == "train"))
def test_an_overridden_preset_replaces_the_resolved_section(recipe: str) -> None:
    data = RECIPES[recipe]().model_dump(mode="json")
    overrides = {"algorithm.clip_high": 0.31, "algorithm.preset": "dapo"}
    config = parse_run_config(with_overrides(data, overrides))
    assert isinstance(config, TrainRun)
    assert config.algorithm == AlgorithmConfig(preset="dapo", clip_high=0.31)
    assert parse_run_config(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preset": "ppo"}, "preset: Input should be 'grpo'"),
        ({"preset": ["grpo"]}, "preset: "),
        ({"clip_hihg": 0.3}, "clip_hihg: unknown setting"),
        ({"clip_low": 0}, "clip_low: "),
        ({"dual_clip": 1.0}, "dual_clip: "),
        ({"kl": "k4"}, "kl: "),
        ({"filtered_reasons": ["env_error"]}, "filtered_reasons: .*infrastructure"),
        ({"filtered_reasons": ["timeout"]}, r"filtered_reasons\.0: Input should be 'submitted'"),
        ({"importance_low": 3.0}, "importance_low 3.0 exceeds importance_high 2.0"),
    ],
)
def test_invalid_settings_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_algorithm(settings)


def sentences(**settings: Any) -> dict[str, str]:
    return dict(describe(AlgorithmConfig(**settings), max_context=32_768))


def test_description_of_the_default_objective_states_its_settings() -> None:
    texts = sentences()
    assert texts["Preset"] == "grpo_pp, unchanged."
    assert "other siblings" in texts["Advantage"]
    assert "not divided" in texts["Advantage"]
    assert "below 0.8 and above 1.28" in texts["Ratio and clip"]
    assert "divided by 32,768" in texts["Aggregation"]
    assert "filtered trajectories count" in texts["Aggregation"]
    assert "max context, max response, max steps, rollout timeout, env timeout" in texts["Filtering"]
    assert "are excluded from their group's baseline" in texts["Filtering"]
    assert texts["KL"].startswith("No KL term")
    assert "sampler's own" in texts["Importance correction"]
    assert "Entropy" not in texts


def test_description_follows_the_settings() -> None:
    texts = sentences(preset="dapo", dual_clip=3.0, importance_correction="icepop", importance_low=0.5)
    assert texts["Preset"] == (
        "dapo, changed in dual_clip = 3, importance_correction = icepop, importance_low = 0.5."
    )
    assert "at a ratio of 3" in texts["Ratio and clip"]
    assert "trainer's old" in texts["Ratio and clip"]
    assert "tokens outside 0.5 … 2 carry no loss" in texts["Importance correction"]
    assert "replaced by fresh ones, in up to 3 rounds" in texts["Groups without a signal"]
    assert "last 6,554 tokens" in texts["Overlong penalty"]
    assert "0.04 times k3" in sentences(preset="grpo")["KL"]
    assert "subtracted from its reward" in sentences(preset="rloo")["KL"]
    assert "at most 5" in sentences(preset="cispo")["Ratio and clip"]
    assert "no ratio and no clip" in sentences(preset="rloo")["Ratio and clip"]
    assert "No KL term" in sentences(preset="grpo", kl_coefficient=0)["KL"]


def test_an_infinite_clip_round_trips_through_json() -> None:
    """Strict JSON and Postgres' jsonb have no infinity."""
    for value in (math.inf, "inf", "Infinity"):
        config = AlgorithmConfig(clip_high=value, importance_high=value)
        assert config.clip_high == math.inf
        text = json.dumps(config.model_dump(mode="json"), allow_nan=False)
        assert json.loads(text)["clip_high"] == "inf"
        assert json.loads(config.model_dump_json())["importance_high"] == "inf"
        assert AlgorithmConfig.model_validate_json(text) == config
    assert parse_settings(["algorithm.clip_high=Infinity", "a=inf"]) == {
        "algorithm.clip_high": "Infinity",
        "a": "inf",
    }


@pytest.mark.parametrize(
    "override",
    [
        {"algorithm.clip_high": "nan"},
        {"algorithm.clip_high": "-inf"},
        {"algorithm.clip_low": "inf"},
        {"algorithm.kl_coefficient": math.inf},
        {"trainer.learning_rate": "inf"},
        {"algorithm.overlong_penalty": "nan"},
    ],
)
def test_other_settings_refuse_infinity_and_nan(override: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("quickstart", override)
    assert [problem.setting for problem in caught.value.problems] == list(override)


def test_description_omits_infinite_bounds() -> None:
    text = sentences(clip_high=math.inf)["Ratio and clip"]
    assert "(below 0.8)" in text
    assert "inf" not in text
    assert "no ratio is clipped" in sentences(clip_low=1, clip_high="inf")["Ratio and clip"]
    assert "at least 0.8" in sentences(preset="cispo", clip_low=0.2, clip_high="inf")["Ratio and clip"]
