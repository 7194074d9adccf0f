"""Verification of finished trajectories."""

from __future__ import annotations

from engine.config.policies import TransformerPolicyConfig
from engine.config.run import VerifierRun


def verify() -> VerifierRun:
    """Score the trajectories of finished runs with a model that judges them by reading."""
    return VerifierRun(name="verification", policy=TransformerPolicyConfig(checkpoint="Qwen/Qwen3-4B"))
