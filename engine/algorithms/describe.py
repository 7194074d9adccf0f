"""The resolved objective in words and numbers: one (title, sentence) pair per ingredient.

To add one: a function here that describes the effect of a setting, also when it is off if that matters.
"""

from __future__ import annotations

import math

from engine.algorithms.terms import has_kl_loss, has_kl_reward
from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.presets import PRESETS

_BASELINES = {
    "leave_one_out": "The mean reward of the other siblings is subtracted from a trajectory's reward",
    "group_mean": "The mean reward of the whole group is subtracted from a trajectory's reward",
    "batch_mean": "The mean reward of the whole update is subtracted from a trajectory's reward",
    "none": "The reward itself is the advantage; nothing is subtracted",
}
_DEVIATIONS = {
    "none": "it is not divided by a standard deviation",
    "group": "it is divided by the group's standard deviation (n − 1)",
    "batch": "it is divided by the update's standard deviation (n − 1)",
}
_MEANS = {
    "leave_one_out": "mean(others)",
    "group_mean": "mean(group)",
    "batch_mean": "mean(update)",
    "none": "",
}
_SPREADS = {"none": "", "group": "std(group)", "batch": "std(update)"}
_KL = {
    "k1": "log π − log π_ref",
    "k2": "½ (log π − log π_ref)²",
    "k3": "π_ref/π − log(π_ref/π) − 1",
}


def describe(config: AlgorithmConfig, *, max_context: int | None = None) -> list[tuple[str, str]]:
    """Describe the objective, from the reward to the loss.

    Args:
        config: resolved.
        max_context: the agent's limit in tokens, for numbers where settings refer to it.
    """
    entries = [
        ("Preset", _preset(config)),
        ("Advantage", f"{_BASELINES[config.baseline]}; {_DEVIATIONS[config.std_normalisation]}."),
        ("Ratio and clip", _ratio(config)),
        ("Aggregation", _aggregation(config, max_context)),
        ("Filtering", _filtering(config)),
        ("Groups without a signal", _groups(config)),
        ("KL", _kl(config)),
        ("Importance correction", _correction(config)),
    ]
    if config.entropy_coefficient:
        entries.append(("Entropy", f"{config.entropy_coefficient:g} times the token entropy is a bonus."))
    if config.overlong_buffer:
        entries.append(("Overlong penalty", _overlong(config, max_context)))
    return entries


def advantage_equation(config: AlgorithmConfig) -> str:
    """Return the advantage as an equation; ``r`` is the reward after its penalties."""
    mean, spread = _MEANS[config.baseline], _SPREADS[config.std_normalisation]
    difference = f"r − {mean}" if mean else "r"
    if not spread:
        return f"A = {difference}"
    return f"A = ({difference}) ÷ {spread}" if mean else f"A = r ÷ {spread}"


def changed_settings(config: AlgorithmConfig) -> dict[str, object]:
    """Return the settings in which the objective differs from its preset, with their values."""
    plain = AlgorithmConfig(preset=config.preset)
    return {
        name: getattr(config, name)
        for name in AlgorithmConfig.model_fields
        if getattr(config, name) != getattr(plain, name)
    }


def _preset(config: AlgorithmConfig) -> str:
    changed = changed_settings(config)
    assert config.preset in PRESETS
    if not changed:
        return f"{config.preset}, unchanged."
    return f"{config.preset}, changed in {', '.join(f'{name} = {_value(v)}' for name, v in changed.items())}."


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(str(part) for part in value) or "nothing"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _ratio(config: AlgorithmConfig) -> str:
    low, high = 1 - config.clip_low, 1 + config.clip_high
    policy = "the sampler's" if config.importance_correction == "none" else "the trainer's old"
    bounds = " and ".join(
        f"{side} {bound:g}" for side, bound in (("below", low), ("above", high)) if 0 < bound < math.inf
    )
    if config.ratio == "none":
        return "REINFORCE: the advantage times log π; there is no ratio and no clip."
    if config.ratio == "cispo":
        caps = (("at least", low), ("at most", high))
        cap = "".join(f" and {side} {bound:g}" for side, bound in caps if 0 < bound < math.inf)
        return (
            f"CISPO: the advantage times log π, weighted by the ratio to {policy} probability, without "
            f"gradient{cap}."
        )
    subject = "each token's" if config.ratio == "token" else "each trajectory's geometric mean"
    dual = (
        f" For negative advantages the loss stops growing at a ratio of {config.dual_clip:g}."
        if config.dual_clip is not None
        else ""
    )
    clip = (
        f"a ratio outside the clip ({bounds}) in the advantage's direction has no gradient"
        if bounds
        else "no ratio is clipped"
    )
    return f"The advantage is weighted by {subject} ratio to {policy} probability; {clip}.{dual}"


def _aggregation(config: AlgorithmConfig, max_context: int | None) -> str:
    counted = {
        "all": "filtered trajectories count",
        "kept": "filtered trajectories do not count",
    }[config.denominator]
    if config.aggregation == "constant_length":
        default = f"{max_context:,}" if max_context else "the agent's max_context"
        length = f"{config.normalisation_length:,}" if config.normalisation_length else default
        return (
            f"Token losses are summed over a trajectory and divided by {length}, then averaged over the "
            f"trajectories of the optimizer step; {counted}."
        )
    if config.aggregation == "token_mean":
        return f"Token losses are averaged over all sampled tokens of the optimizer step; {counted}."
    if config.aggregation == "sequence_mean":
        return (
            "Token losses are averaged over each trajectory, then over the trajectories of the "
            f"optimizer step; {counted}."
        )
    return "Token losses are summed without normalisation."


def _filtering(config: AlgorithmConfig) -> str:
    if not config.filtered_reasons:
        return (
            "Every graded trajectory is trained on, however it ended. Infrastructure failures count nowhere."
        )
    policy = {
        "drop": "they are excluded from their group's baseline",
        "keep_real_reward": "they stay in their group's baseline with their reward",
        "keep_zero": "they stay in their group's baseline with reward 0",
    }[config.filtered_baseline]
    reasons = ", ".join(reason.value.replace("_", " ") for reason in config.filtered_reasons)
    return (
        f"Trajectories that ended by {reasons} carry no loss; {policy}. Infrastructure failures count "
        "nowhere."
    )


def _groups(config: AlgorithmConfig) -> str:
    kept = {
        "keep": "They count in the denominator.",
        "drop": "They do not count in the denominator and carry no loss.",
    }[config.zero_advantage_groups]
    if not config.dynamic_sampling:
        return kept
    return (
        "Groups whose rewards are all equal are replaced by fresh ones, in up to "
        f"{config.max_resampling_rounds} rounds an iteration. {kept}"
    )


def _kl(config: AlgorithmConfig) -> str:
    if has_kl_loss(config):
        return (
            f"{config.kl_coefficient:g} times {config.kl} = {_KL[config.kl]} of every token is added to "
            "the loss."
        )
    if has_kl_reward(config):
        return (
            f"{config.kl_coefficient:g} times {config.kl} = {_KL[config.kl]}, summed over a "
            "trajectory's tokens, is subtracted from its reward."
        )
    return "No KL term; there is no reference policy."


def _correction(config: AlgorithmConfig) -> str:
    band = f"{config.importance_low:g} … {config.importance_high:g}"
    return {
        "none": "None: ratios are taken against the sampler's own recorded log-probabilities.",
        "token_tis": f"Token losses are weighted by π_old/μ, truncated to {band}.",
        "icepop": f"Token losses are weighted by π_old/μ; tokens outside {band} carry no loss.",
        "sequence_mask": f"Trajectories whose geometric mean of π_old/μ is outside {band} carry no loss.",
    }[config.importance_correction]


def _overlong(config: AlgorithmConfig, max_context: int | None) -> str:
    if config.overlong_buffer >= 1:
        part = f"{config.overlong_buffer:,.0f} tokens"
    elif max_context:
        part = f"{config.overlong_buffer * max_context:,.0f} tokens"
    else:
        part = f"{config.overlong_buffer:.0%}"
    return (
        f"Over the last {part} of the context a trajectory's reward decreases linearly, by up to "
        f"{config.overlong_penalty:g}."
    )
