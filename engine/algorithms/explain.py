"""The arithmetic of one group from a JSON document (``python -m engine.algorithms explain``).

Input, every array of a trajectory as long as its conversation:

    {"max_tokens": int, "trajectories": [{"reward": float or null, "termination": reason,
      "logprobs": [...], "old_logprobs": [...], "mask": [0|1, ...]}]}

A trajectory may also have ``sampler_logprobs`` (where an importance correction separates them from
``old_logprobs``), ``reference_logprobs`` (for a KL term) and ``entropies`` (for an entropy term). Output:

    {"advantages": [...], "baselines": [...], "loss_masks": [0|1, ...], "token_losses": [[...]], "loss": x}

``token_losses`` are the tokens' own losses, before the trajectory's weight and 0 where nothing was sampled or
nothing is trained; ``loss`` is their weighted sum, with this group as the whole optimizer step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from engine.algorithms.advantages import Member, TrajectoryOutcome, outcome_members
from engine.algorithms.arithmetic import SampledTokens, kl_estimates, token_losses
from engine.algorithms.terms import has_kl_reward, needs_entropy, needs_reference
from engine.algorithms.weights import trajectory_weights
from engine.config.base import config_error
from engine.config.learning.algorithm import AlgorithmConfig
from engine.errors import ConfigError
from engine.types import TerminationReason

Finite = Annotated[float, Field(allow_inf_nan=False)]


class TrajectoryDocument(BaseModel):
    """One trajectory of the input; all its arrays have the same length."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    reward: Finite | None
    termination: TerminationReason
    logprobs: list[Finite]
    old_logprobs: list[Finite]
    mask: list[Literal[0, 1]]
    sampler_logprobs: list[Finite] | None = None
    reference_logprobs: list[Finite] | None = None
    entropies: list[Finite] | None = None

    @model_validator(mode="after")
    def _equal_lengths(self) -> TrajectoryDocument:
        names = ("mask", "logprobs", "old_logprobs", "sampler_logprobs", "reference_logprobs", "entropies")
        columns = {name: getattr(self, name) for name in names}
        lengths = {name: len(column) for name, column in columns.items() if column is not None}
        if len(set(lengths.values())) > 1:
            listing = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise ValueError(f"the arrays differ in length ({listing}); give one entry per token in each")
        return self

    def sampled(self) -> SampledTokens:
        """Return the columns at the sampled positions."""

        def column(values: Sequence[float]) -> list[float]:
            return [value for value, is_sampled in zip(values, self.mask, strict=True) if is_sampled]

        sampler = self.old_logprobs if self.sampler_logprobs is None else self.sampler_logprobs
        return SampledTokens(
            logprobs=column(self.logprobs),
            old_logprobs=column(self.old_logprobs),
            sampler_logprobs=column(sampler),
            reference_logprobs=None if self.reference_logprobs is None else column(self.reference_logprobs),
            entropies=None if self.entropies is None else column(self.entropies),
        )


class GroupDocument(BaseModel):
    """The input: one group and the context limit of its agent in tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    max_tokens: int = Field(ge=1)
    trajectories: list[TrajectoryDocument]


def parse_group(data: Any) -> GroupDocument:
    """Read the input. Raises ConfigError naming every wrong field."""
    try:
        return GroupDocument.model_validate(data)
    except ValidationError as error:
        raise config_error(error, what="field") from None


def explain(group: GroupDocument, config: AlgorithmConfig) -> dict[str, Any]:
    """Compute the output document.

    Raises:
        ConfigError: a ratio is too large to compute with.
    """
    sampled = [trajectory.sampled() for trajectory in group.trajectories]
    members = _members(group, sampled, config)
    lengths = [len(tokens.logprobs) for tokens in sampled]
    weights = trajectory_weights(members, lengths, config, max_context=group.max_tokens)
    losses: list[list[float]] = []
    for number, (member, weight, tokens) in enumerate(zip(members, weights, sampled, strict=True)):
        try:
            losses.append(token_losses(tokens, member.advantage or 0.0, config) if weight else [])
        except OverflowError:
            raise ConfigError(
                f"trajectories.{number}: a ratio of its log-probabilities is too large for a float; "
                "check logprobs, old_logprobs, sampler_logprobs and reference_logprobs"
            ) from None
    return {
        "advantages": [member.advantage for member in members],
        "baselines": [member.baseline for member in members],
        "loss_masks": [int(member.loss_mask) for member in members],
        "token_losses": [
            _spread(own, trajectory.mask) for own, trajectory in zip(losses, group.trajectories, strict=True)
        ],
        "loss": math.fsum(weight * math.fsum(own) for weight, own in zip(weights, losses, strict=True)),
    }


def left_out(group: GroupDocument, config: AlgorithmConfig) -> list[str]:
    """Return a note on each term of the objective that is left out for lack of columns in the document."""
    notes = []
    documents = group.trajectories
    if needs_reference(config) and any(document.reference_logprobs is None for document in documents):
        notes.append(
            f"the {config.kl} term (kl_coefficient {config.kl_coefficient:g}) is left out where a "
            "trajectory has no reference_logprobs"
        )
    if needs_entropy(config) and any(document.entropies is None for document in documents):
        notes.append(
            f"the entropy term (entropy_coefficient {config.entropy_coefficient:g}) is left out where a "
            "trajectory has no entropies"
        )
    if config.importance_correction != "none" and any(
        document.sampler_logprobs is None for document in documents
    ):
        notes.append(
            f"the {config.importance_correction} correction is 1 where a trajectory has no "
            "sampler_logprobs: old_logprobs are used instead"
        )
    return notes


def resolve_settings(preset: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Resolve settings of ``algorithm``, given by short or dotted names, on top of a preset."""
    resolved = {key.removeprefix("algorithm."): value for key, value in settings.items()}
    return resolved if preset is None else {"preset": preset, **resolved}


def _members(
    group: GroupDocument, sampled: Sequence[SampledTokens], config: AlgorithmConfig
) -> tuple[Member, ...]:
    outcomes = []
    for index, (trajectory, tokens) in enumerate(zip(group.trajectories, sampled, strict=True)):
        kl = 0.0
        if has_kl_reward(config) and tokens.reference_logprobs is not None:
            kl = math.fsum(kl_estimates(tokens.old_logprobs, tokens.reference_logprobs, config.kl))
        outcomes.append(
            TrajectoryOutcome(
                index=index,
                reward=trajectory.reward,
                termination=trajectory.termination,
                length=len(trajectory.mask),
                kl=kl,
            )
        )
    return outcome_members([outcomes], config, max_context=group.max_tokens)[0]


def _spread(losses: Sequence[float], mask: Sequence[int]) -> list[float]:
    """Spread the losses of the sampled positions over all positions, 0 elsewhere."""
    rest = iter(losses)
    return [next(rest, 0.0) if is_sampled else 0.0 for is_sampled in mask]
