"""Settings of the objective: every ingredient under its own name, filled in from a named preset.

``engine.algorithms`` holds the equations, ``engine.config.presets`` the named compositions. A setting that is
not given takes the preset's value, or its default where the preset says nothing, so the resolved
configuration always records every one. To add a setting: a field here, its rule in ``engine.algorithms``
(advantages, weights, objective, arithmetic), a line in ``engine.algorithms.describe``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from engine.config.base import Section, config_error
from engine.config.presets import PRESETS, PresetName
from engine.types import INFRASTRUCTURE_REASONS, TerminationReason


class AlgorithmConfig(Section):
    """The objective; by default GRPO++."""

    preset: PresetName = "grpo_pp"
    """Named composition that fills in every setting not given."""
    baseline: Literal["leave_one_out", "group_mean", "batch_mean", "none"] = "leave_one_out"
    """What is subtracted from a reward."""
    std_normalisation: Literal["none", "group", "batch"] = "none"
    """Whether advantages are divided by the standard deviation of the group's or the update's rewards."""
    ratio: Literal["token", "sequence", "cispo", "none"] = "token"
    """What weighs a token: its own clipped ratio (PPO), its trajectory's (GSPO), its own detached and capped
    one (CISPO), or nothing (REINFORCE)."""
    clip_low: float = Field(default=0.2, gt=0, le=1)
    """ε_low: a ratio counts down to 1 − ε_low; 1 is no lower bound."""
    clip_high: float = Field(default=0.28, gt=0)
    """ε_high: a ratio counts up to 1 + ε_high."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Bounds the surrogate of a negative advantage at c · A; None is no bound."""
    aggregation: Literal["constant_length", "token_mean", "sequence_mean", "token_sum"] = "constant_length"
    """How the sums over a trajectory's model tokens are normalised."""
    normalisation_length: int | None = Field(default=None, ge=1)
    """Divisor of ``constant_length``; None is the agent's ``max_context``."""
    kl: Literal["none", "k1", "k2", "k3"] = "none"
    """Estimator of the divergence from the reference policy."""
    kl_placement: Literal["loss", "reward"] = "loss"
    """Whether the divergence is a term of the loss or is taken off the reward."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """β of the divergence; 0 switches it off."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus in the loss; 0 switches it off."""
    importance_correction: Literal["none", "token_tis", "icepop", "sequence_mask"] = "none"
    """How the gap between sampler and trainer is corrected; none takes the ratio against the sampler
    itself."""
    importance_low: float = Field(default=0.0, ge=0)
    """Lower bound of the correction's weight; 0 is none."""
    importance_high: float = Field(default=2.0, gt=0)
    """Upper bound of the correction's weight."""
    filtered_reasons: tuple[TerminationReason, ...] = (
        TerminationReason.MAX_CONTEXT,
        TerminationReason.MAX_RESPONSE,
        TerminationReason.MAX_STEPS,
        TerminationReason.ROLLOUT_TIMEOUT,
        TerminationReason.ENV_TIMEOUT,
    )
    """Compact filtering: trajectories that ended so carry no loss."""
    filtered_baseline: Literal["drop", "keep_real_reward", "keep_zero"] = "drop"
    """What a filtered trajectory does to its group's baseline."""
    denominator: Literal["all", "kept"] = "all"
    """Whether filtered trajectories count in the loss's denominator."""
    zero_advantage_groups: Literal["keep", "drop"] = "keep"
    """Whether groups without any signal count in the loss's denominator and carry its KL and entropy
    terms."""
    dynamic_sampling: bool = False
    """Replace groups whose rewards are all equal by fresh ones before the update."""
    max_resampling_rounds: int = Field(default=3, ge=1)
    """How often an iteration asks for fresh groups at most, with ``dynamic_sampling``."""
    overlong_buffer: float = Field(default=0.0, ge=0)
    """Last part of the context in which a trajectory's reward sinks: tokens from 1 up, or a share of
    ``max_context`` below 1; 0 switches it off."""
    overlong_penalty: float = Field(default=1.0, ge=0)
    """What a trajectory that fills its context loses."""

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
    """Return the objective with some settings changed.

    Args:
        settings: by their names; ``preset`` among them starts anew from that preset.
        base: what to change; None is the default preset.

    Raises:
        ConfigError: a setting is unknown or has an impossible value.
    """
    given = {} if base is None or "preset" in settings else base.model_dump()
    try:
        return AlgorithmConfig.model_validate({**given, **settings})
    except ValidationError as error:
        raise config_error(error) from None
