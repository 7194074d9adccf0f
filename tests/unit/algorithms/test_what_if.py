"""Counterfactual advantages and masks of stored groups."""

from __future__ import annotations

from typing import Any

import pytest

from engine.algorithms import what_if
from engine.algorithms.advantages import TrajectoryOutcome, outcome_members
from engine.algorithms.what_if import update_signal
from engine.config.learning.algorithm import AlgorithmConfig
from engine.types import TerminationReason

SUBMITTED, TIMEOUT = TerminationReason.SUBMITTED, TerminationReason.ROLLOUT_TIMEOUT


def stored(*outcomes: tuple[float | None, TerminationReason]) -> list[TrajectoryOutcome]:
    return [
        TrajectoryOutcome(index=i, reward=reward, termination=reason, length=10 * (i + 1))
        for i, (reward, reason) in enumerate(outcomes)
    ]


GROUP = stored((1.0, SUBMITTED), (0.0, SUBMITTED), (1.0, TIMEOUT), (None, SUBMITTED))


def answers(settings: Any, **arguments: Any) -> tuple[list[float | None], list[bool]]:
    result = what_if(GROUP, settings, max_context=100, **arguments)
    return [member.advantage for member in result.members], [member.loss_mask for member in result.members]


def test_settings_determine_advantages_and_masks() -> None:
    assert answers({}) == ([1.0, -1.0, None, None], [True, True, False, False])
    assert answers({"filtered_baseline": "keep_zero"}) == (
        [1.0, -0.5, -0.5, None],
        [True, True, False, False],
    )
    assert answers({"preset": "dr_grpo"})[1] == [True, True, True, False]
    assert answers({"preset": "dr_grpo"})[0] == pytest.approx([1 / 3, -2 / 3, 1 / 3, None])


def test_settings_override_the_base_objective_unless_a_preset_is_given() -> None:
    base = AlgorithmConfig(preset="dr_grpo")
    assert what_if(GROUP, {"baseline": "none"}, base=base, max_context=100).config == AlgorithmConfig(
        preset="dr_grpo", baseline="none"
    )
    from_preset = what_if(GROUP, {"preset": "gspo"}, base=base, max_context=100)
    assert from_preset.config == AlgorithmConfig(preset="gspo")


def test_unchanged_settings_reproduce_the_members_of_the_run() -> None:
    for preset in ("grpo", "dapo", "grpo_pp"):
        config = AlgorithmConfig.model_validate({"preset": preset})
        (expected,) = outcome_members([GROUP], config, max_context=100)
        assert what_if(GROUP, config, max_context=100).members == expected


def test_batch_wide_settings_include_the_other_groups() -> None:
    others = [stored((0.0, SUBMITTED), (0.0, SUBMITTED), (0.0, SUBMITTED))]
    settings = {"baseline": "batch_mean", "filtered_reasons": []}
    alone = what_if(GROUP, settings, max_context=100)
    beside = what_if(GROUP, settings, max_context=100, others=others)
    assert [m.baseline for m in alone.members] == pytest.approx([2 / 3] * 3 + [None])
    assert [m.baseline for m in beside.members] == pytest.approx([1 / 3] * 3 + [None])
    assert alone.notes == ("Batch-wide means and deviations are those of this group alone.",)
    assert beside.notes == ()


def test_signal_of_an_update_counts_trained_tokens_and_weighs_groups() -> None:
    """Two groups of rollouts with 10, 20, … tokens, of which one has no signal."""
    uniform = stored((1.0, SUBMITTED), (1.0, SUBMITTED))
    tokens = [[10, 20, 30, 40], [10, 20]]
    own = update_signal([GROUP, uniform], tokens, AlgorithmConfig(), max_context=100)
    assert (own.groups, own.uniform, own.trajectories, own.tokens) == (2, 1, 2, 30)
    counted = 5  # all but the one lost to infrastructure
    assert own.weights == pytest.approx(((10 + 20) / (100 * counted), 0.0))
    kept = AlgorithmConfig(filtered_reasons=(), baseline="none")
    other = update_signal([GROUP, uniform], tokens, kept, max_context=100)
    assert (other.uniform, other.trajectories, other.tokens) == (0, 4, 10 + 30 + 10 + 20)
    assert other.weights == pytest.approx((40 / (100 * counted), 30 / (100 * counted)))


def test_terms_that_cannot_be_recomputed_are_noted() -> None:
    (note,) = what_if(GROUP, {"preset": "rloo"}, max_context=100).notes
    assert "k1 penalty on the reward is left out" in note
    blind = [TrajectoryOutcome(index=0, reward=1.0, termination=SUBMITTED)]
    (note,) = what_if(blind, {"preset": "dapo"}, max_context=100).notes
    assert "overlong penalty is left out" in note
