"""Settings of audits by mutated tests."""

from __future__ import annotations

import pytest

from engine.config.run import parse_run_config
from engine.errors import ConfigError

DATASET = {"name": "d", "recipe": "r", "dataset": {"name": "data"}}


def test_unknown_audit_modes_are_refused_under_their_setting() -> None:
    config = {"kind": "rollout", **DATASET, "grading": {"counterfactual": "never"}}
    with pytest.raises(ConfigError) as refused:
        parse_run_config(config)
    assert [problem.setting for problem in refused.value.problems] == ["grading.counterfactual"]


def test_validation_refuses_an_audit_mode() -> None:
    grading = {"reuse_verdicts": False, "counterfactual": "off"}
    with pytest.raises(ConfigError, match="grading.counterfactual: has no effect in validation"):
        parse_run_config({"kind": "validate", **DATASET, "grading": grading})
