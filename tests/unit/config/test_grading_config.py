"""Setting of audits with mutated tests."""

from __future__ import annotations

import pytest

from engine.config.run import parse_run_config
from engine.errors import ConfigError

DATASET = {"name": "d", "recipe": "r", "dataset": {"name": "data"}}


def test_unknown_modes_of_audits_are_refused_by_name() -> None:
    config = {"kind": "rollout", **DATASET, "grading": {"counterfactual": "never"}}
    with pytest.raises(ConfigError) as refused:
        parse_run_config(config)
    assert [problem.setting for problem in refused.value.problems] == ["grading.counterfactual"]


def test_validation_refuses_the_mode_of_audits() -> None:
    grading = {"reuse_verdicts": False, "counterfactual": "off"}
    with pytest.raises(ConfigError, match="grading.counterfactual: has no effect in validation"):
        parse_run_config({"kind": "validate", **DATASET, "grading": grading})
