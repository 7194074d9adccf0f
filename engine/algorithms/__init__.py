"""The objective: advantages, weights and the loss of graded groups.

Only ``objective`` (the loss in torch) depends on tensors and the machine-learning stack.
"""

from engine.algorithms.advantages import (
    Member,
    TrajectoryOutcome,
    group_members,
    is_informative,
    step_members,
)
from engine.algorithms.describe import describe
from engine.algorithms.lint import lint
from engine.algorithms.terms import (
    has_kl_loss,
    has_kl_reward,
    needs_entropy,
    needs_old_logprobs,
    needs_reference,
)
from engine.algorithms.weights import needs_forward, trajectory_weights
from engine.algorithms.what_if import Counterfactual, what_if

__all__ = [
    "Counterfactual",
    "Member",
    "TrajectoryOutcome",
    "describe",
    "group_members",
    "has_kl_loss",
    "has_kl_reward",
    "is_informative",
    "lint",
    "needs_entropy",
    "needs_forward",
    "needs_old_logprobs",
    "needs_reference",
    "step_members",
    "trajectory_weights",
    "what_if",
]
