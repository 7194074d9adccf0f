"""Settings of counterfactual grading: defaults, and settings that have no effect are refused."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.run import parse_run_config
from engine.errors import ConfigError

DATASET = {"name": "d", "recipe": "r", "dataset": {"name": "data"}}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"sample_rate": 0.5}, "sample_rate"),
        ({"mode": "sample"}, "sample_rate"),
        ({"mode": "sample", "sample_rate": 1}, "sample_rate"),
        ({"mode": "off", "training": {"false_runs": 2}}, "training"),
        ({"mode": "off", "evaluation": {"true_runs": 2}}, "evaluation"),
        ({"training": {"false_runs": 0}}, "training.false_runs"),
        ({"training": {"true_runs": 0}}, "training.true_runs"),
        ({"mode": "never"}, "mode"),
    ],
)
def test_settings_without_effect_are_refused_by_name(settings: dict[str, Any], named: str) -> None:
    config = {"kind": "rollout", **DATASET, "grading": {"counterfactual": settings}}
    with pytest.raises(ConfigError) as refused:
        parse_run_config(config)
    assert [problem.setting for problem in refused.value.problems] == [f"grading.counterfactual.{named}"]


@pytest.mark.parametrize("settings", [{"mode": "off"}, {"mode": "sample", "sample_rate": 0.1}])
def test_resolved_settings_are_read_again(settings: dict[str, Any]) -> None:
    config = parse_run_config({"kind": "rollout", **DATASET, "grading": {"counterfactual": settings}})
    assert parse_run_config(config.model_dump(mode="json")) == config


def test_validation_has_no_use_for_them() -> None:
    grading = {"reuse_verdicts": False, "counterfactual": {"mode": "off"}}
    with pytest.raises(ConfigError, match="grading.counterfactual: has no effect in validation"):
        parse_run_config({"kind": "validate", **DATASET, "grading": grading})
