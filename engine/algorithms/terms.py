"""Terms of a configured objective and the inputs they need from a trainer."""

from __future__ import annotations

from engine.config.learning.algorithm import AlgorithmConfig


def has_kl_loss(config: AlgorithmConfig) -> bool:
    """Return whether the divergence from the reference policy is a term of the loss."""
    return config.kl != "none" and config.kl_placement == "loss" and config.kl_coefficient > 0


def has_kl_reward(config: AlgorithmConfig) -> bool:
    """Return whether the divergence from the reference policy is subtracted from the reward."""
    return config.kl != "none" and config.kl_placement == "reward" and config.kl_coefficient > 0


def needs_reference(config: AlgorithmConfig) -> bool:
    """Return whether the reference policy's log-probabilities are needed."""
    return has_kl_loss(config) or has_kl_reward(config)


def needs_old_logprobs(config: AlgorithmConfig) -> bool:
    """Return whether the trainer's log-probabilities before the update are needed."""
    return config.importance_correction != "none"


def needs_entropy(config: AlgorithmConfig) -> bool:
    """Return whether entropies need a gradient."""
    return config.entropy_coefficient > 0
