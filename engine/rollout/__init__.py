"""Rollouts: scheduling under budgets, seeds, and the stored form of trajectories."""

from __future__ import annotations

from engine.rollout.environments import SweEnvironments
from engine.rollout.observer import RolloutObserver
from engine.rollout.scheduler import GroupRequest, RolloutRequest, RolloutScheduler

__all__ = ["GroupRequest", "RolloutObserver", "RolloutRequest", "RolloutScheduler", "SweEnvironments"]
