"""The objective: from graded groups to advantages, weights and the loss.

Everything here but ``objective`` (the loss in torch) is free of tensors and of the machine-learning stack.
"""

from engine.algorithms.advantages import Member, Outcome, group_members, is_informative, step_members
from engine.algorithms.weights import (
    needs_entropy,
    needs_forward,
    needs_old_logprobs,
    needs_reference,
    trajectory_weights,
)

__all__ = [
    "Member",
    "Outcome",
    "group_members",
    "is_informative",
    "needs_entropy",
    "needs_forward",
    "needs_old_logprobs",
    "needs_reference",
    "step_members",
    "trajectory_weights",
]
