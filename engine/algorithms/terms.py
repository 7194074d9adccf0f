"""Which terms a configured objective has, and what a trainer must compute for them."""

from __future__ import annotations

from engine.config.algorithm import AlgorithmConfig


def has_kl_loss(config: AlgorithmConfig) -> bool:
    """Whether the divergence from the reference policy is a term of the loss."""
    return config.kl != "none" and config.kl_placement == "loss" and config.kl_coefficient > 0


def has_kl_reward(config: AlgorithmConfig) -> bool:
    """Whether the divergence from the reference policy is taken off the reward."""
    return config.kl != "none" and config.kl_placement == "reward" and config.kl_coefficient > 0


def needs_reference(config: AlgorithmConfig) -> bool:
    """Whether the reference policy's log-probabilities are needed at all."""
    return has_kl_loss(config) or has_kl_reward(config)


def needs_old_logprobs(config: AlgorithmConfig) -> bool:
    """Whether the trainer's log-probabilities before the update are needed, besides the sampler's."""
    return config.importance_correction != "none"


def needs_entropy(config: AlgorithmConfig) -> bool:
    """Whether entropies need a gradient."""
    return config.entropy_coefficient > 0
