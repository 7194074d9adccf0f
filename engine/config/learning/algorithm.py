"""Settings of the training objective: every ingredient has its own name; a named preset fills in the rest.

``engine.algorithms`` holds the equations, ``engine.config.presets`` the named presets. A setting that is
not given takes the preset's value, or its default where the preset says nothing, so the resolved
configuration always records every one. To add a setting: a field here, its rule in ``engine.algorithms``
(advantages, weights, objective, arithmetic), a line in ``engine.algorithms.describe``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from engine.config.base import Section, UpperBound, config_error
from engine.config.presets import PRESETS, PresetName
from engine.types import INFRASTRUCTURE_REASONS, TerminationReason


class AlgorithmConfig(Section):
    """Training objective; GRPO++ by default."""

    preset: PresetName = "grpo_pp"
    """Named objective that supplies every setting not given."""
    baseline: Literal["leave_one_out", "group_mean", "batch_mean", "none"] = "leave_one_out"
    """Baseline subtracted from each reward."""
    std_normalisation: Literal["none", "group", "batch"] = "none"
    """Divide advantages by the standard deviation of the rewards in the group or in the update."""
    ratio: Literal["token", "sequence", "cispo", "none"] = "token"
    """Weight of each token: its own clipped probability ratio (PPO), the ratio of its trajectory (GSPO),
    its own detached and capped ratio (CISPO), or none (REINFORCE)."""
    clip_low: float = Field(default=0.2, gt=0, le=1)
    """ε_low: ratios are clipped below 1 − ε_low; 1 sets no lower bound."""
    clip_high: UpperBound = 0.28
    """ε_high: ratios are clipped above 1 + ε_high; ``inf`` sets no upper bound."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Dual clip c: bounds the surrogate of a negative advantage at c · A; None sets no bound."""
    aggregation: Literal["constant_length", "token_mean", "sequence_mean", "token_sum"] = "constant_length"
    """Normalisation of the sums over each trajectory's model tokens."""
    normalisation_length: int | None = Field(default=None, ge=1)
    """Divisor of ``constant_length``; None uses the agent's ``max_context``."""
    kl: Literal["none", "k1", "k2", "k3"] = "none"
    """Estimator of the KL divergence from the reference policy."""
    kl_placement: Literal["loss", "reward"] = "loss"
    """Place of the KL divergence: a term of the loss, or a deduction from the reward."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Coefficient β of the KL divergence; 0 disables it."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus in the loss; 0 disables it."""
    importance_correction: Literal["none", "token_tis", "icepop", "sequence_mask"] = "none"
    """Correction of the mismatch between sampler and trainer; ``none`` computes the ratio against the
    sampler's own probabilities."""
    importance_low: float = Field(default=0.0, ge=0)
    """Lower bound of the correction weight; 0 sets none."""
    importance_high: UpperBound = 2.0
    """Upper bound of the correction weight; ``inf`` sets none."""
    filtered_reasons: tuple[TerminationReason, ...] = (
        TerminationReason.MAX_CONTEXT,
        TerminationReason.MAX_RESPONSE,
        TerminationReason.MAX_STEPS,
        TerminationReason.ROLLOUT_TIMEOUT,
        TerminationReason.ENV_TIMEOUT,
    )
    """Compact filtering: trajectories that ended for one of these reasons carry no loss."""
    filtered_baseline: Literal["drop", "keep_real_reward", "keep_zero"] = "drop"
    """Role of a filtered trajectory in the baseline of its group."""
    denominator: Literal["all", "kept"] = "all"
    """Trajectories counted in the denominator of the loss: all, or only those not filtered."""
    zero_advantage_groups: Literal["keep", "drop"] = "keep"
    """Keep groups whose advantages are all zero in the denominator of the loss, with their KL and entropy
    terms, or drop them."""
    dynamic_sampling: bool = False
    """Replace groups whose rewards are all equal with fresh groups before the update."""
    max_resampling_rounds: int = Field(default=3, ge=1)
    """Maximum number of times an iteration requests fresh groups under ``dynamic_sampling``. Where groups are
    collected during updates: maximum number of groups replaced between two updates, in units of
    ``tasks_per_iteration``."""
    overlong_buffer: float = Field(default=0.0, ge=0)
    """Length of the last part of the context over which the reward decreases: tokens (1 or more), or a
    share of ``max_context`` (below 1); 0 disables it."""
    overlong_penalty: float = Field(default=1.0, ge=0)
    """Reward deducted from a trajectory that fills its context."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        preset = data.get("preset", cls.model_fields["preset"].default)
        return {**PRESETS.get(preset, {}), **data} if isinstance(preset, str) else data

    @field_validator("filtered_reasons")
    @classmethod
    def _no_infrastructure_reason(
        cls, reasons: tuple[TerminationReason, ...]
    ) -> tuple[TerminationReason, ...]:
        wrong = sorted(set(reasons) & INFRASTRUCTURE_REASONS)
        if wrong:
            raise ValueError(
                f"filtered_reasons names {', '.join(wrong)}: infrastructure failures are always "
                "excluded from the group and cannot be filtered"
            )
        return reasons

    @model_validator(mode="after")
    def _importance_band(self) -> AlgorithmConfig:
        if self.importance_low > self.importance_high:
            raise ValueError(
                f"importance_low {self.importance_low} exceeds importance_high {self.importance_high}: "
                "no token would be left"
            )
        return self


def parse_algorithm(settings: Mapping[str, Any], *, base: AlgorithmConfig | None = None) -> AlgorithmConfig:
    """Return the objective with the given settings changed.

    Args:
        settings: values by setting name; ``preset`` among them starts over from that preset.
        base: objective to change; None starts from the default preset.

    Raises:
        ConfigError: a setting is unknown or has an impossible value.
    """
    given = {} if base is None or "preset" in settings else base.model_dump()
    try:
        return AlgorithmConfig.model_validate({**given, **settings})
    except ValidationError as error:
        raise config_error(error) from None
